"""`load_borrowed`: weights through transformers' own loading, then our attention in the place of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...attention import Attention, AttentionSpec
from ...errors import ModelError
from ..sources import ModelFolder
from ..weights import weight_files
from .alibi import adapt
from .config import BorrowedConfig
from .library import ENGINE, VALUES, first_line, library, quiet, use_attention
from .model import BorrowedModel
from .trace import TracedLayer, stated

CHECKED = 6
"""Tokens of the runs that hold a loaded model against what is assumed of it."""
UNUSED = ("pooler.",)
"""Parts of a body that training by masked words gives no weights, and that pooling as we do it does not ask for."""
ROUNDING = 0.05
"""Share of the largest value by which two ways to compute the same may differ in 16 bits."""


def load_borrowed(
    config: BorrowedConfig, folder: ModelFolder, dtype: str, device: str, specs: Mapping[str, AttentionSpec]
) -> BorrowedModel:
    """The model of `folder`, with its weights in `dtype` on `device`, and the attention that `specs` names by layer.

    Raises `ModelError` where weights are missing, damaged, of the wrong shape or stored as pickle, and where tokens
    reach others outside of attention, as nobody could then say which of a step belong together.
    """
    weight_files(folder.path)
    place = torch.device(device)
    model = _read(config, folder, dtype).to(place).eval().requires_grad_(False)
    adapt(model)
    _register()
    modules = dict(model.named_modules())
    for layer in config.layers:
        _place(modules[layer.name], layer, specs[layer.name], place)
    borrowed = BorrowedModel(model, body=config.body, first_position=config.first_position)
    use_attention(model, VALUES)
    _refuse_others(borrowed, config, place)
    use_attention(model, ENGINE)
    return borrowed


def _read(config: BorrowedConfig, folder: ModelFolder, dtype: str) -> Any:
    cls = getattr(library(), config.architecture)
    try:
        with quiet():
            model, report = cls.from_pretrained(
                folder.path,
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the report
            )
    except Exception as error:  # whatever transformers and safetensors raise for damaged files
        raise ModelError(f"{folder.path}: transformers cannot load the weights ({first_line(error)})") from error
    for what, problem in (("missing_keys", "are missing from"), ("mismatched_keys", "have another shape in")):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report[what])
        if names := [name for name in names if not (config.body and name.startswith(UNUSED))]:
            shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise ModelError(f"{folder.path}: {len(names)} tensors {problem} the safetensors files: {shown}")
    return model


def _place(module: Any, layer: TracedLayer, spec: AttentionSpec, device: torch.device) -> None:
    """Give the module that calls attention ours, with the tensors that belong to the layer."""
    sinks = getattr(module, layer.sinks).detach().float() if layer.sinks else None
    slopes = module.forward.args[2].to(device) if layer.alibi else None  # of `adapt`
    module.headstock = Attention(layer.name, spec, sinks=sinks, alibi_slopes=slopes)
    module.headstock_arguments = layer.arguments


def _register() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ENGINE, _attend)
    ALL_ATTENTION_FUNCTIONS.register(VALUES, _see_oneself)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **arguments: Any
) -> tuple[Tensor, None]:
    """Our attention as transformers calls it: (1, heads, T, channels) → (1, T, heads, channels)."""
    layer: Attention = module.headstock
    if stated(arguments) != module.headstock_arguments:
        raise ModelError(
            f"layer {layer.name} calls attention with (scaling, sliding_window, softcap) = {stated(arguments)}, "
            f"which was {module.headstock_arguments} when the model was traced"
        )
    dtype = getattr(torch, layer.spec.dtype)
    rows = (part[0].transpose(0, 1).to(dtype) for part in (query, key, value))
    return layer(*rows)[None], None


def _see_oneself(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any
) -> tuple[Tensor, None]:
    """Attention in which each token sees itself alone."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2), None


def _refuse_others(model: BorrowedModel, config: BorrowedConfig, device: torch.device) -> None:
    """Hold that tokens meet in attention and nowhere else, and that the parts compute what the whole does.

    A step's tokens stand in one row, those of all its texts: a convolution or a recurrence over it would mix texts.
    With each token seeing itself alone, their order must not matter. The model itself, called without positions, tells
    where it counts from.
    """
    padding = model.model.config.get_text_config().pad_token_id  # which models may not count as a token
    tokens = [token for token in range(config.vocab_size) if token != padding][-min(CHECKED, config.max_position) :]
    ids, places = torch.tensor(tokens, device=device), torch.arange(len(tokens), device=device)
    with torch.inference_mode():
        forth = model(ids, places)
        back = model(ids.flip(0), places.flip(0)).flip(0)
        parts, whole = forth if config.body else model.compute_logits(forth), model.whole(ids)
    if not _close(forth, back):
        raise ModelError(
            f"{config.source}: tokens of {config.architecture} reach others outside of attention, "
            "so texts cannot be computed together; it is not supported"
        )
    if not _close(parts, whole):
        raise ModelError(
            f"{config.source}: {config.architecture} computes more than hidden states from tokens and positions, and "
            "logits from those, which is not supported"
        )


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= ROUNDING * one.abs().max())
