"""What a model of transformers' asks of attention, layer by layer, found by running it once without weights.

Every parameter is on the meta device, so a trace costs no memory. The attention function is ours and writes down what
it is called with; masks are asked which keys they let a query see. Nothing is read off names or config fields, so
nothing a model asks for can be overlooked: what is not understood is an error that names it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ModelError
from .library import TRACE, use_attention

TOKENS = 8
"""Length of the text that is traced: shapes do not depend on it."""
FARTHEST = 20
"""Masks are asked about positions up to 2 to this power."""
UNDERSTOOD = {"scaling", "sliding_window", "softcap", "s_aux", "is_causal", "alibi_slopes"}
"""Arguments of attention functions that say what is to be computed."""
WITHOUT_EFFECT = {
    "cache_position",
    "deterministic",
    "dropout",
    "layer_idx",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "use_cache",
}
"""Arguments that do not change what attention computes at inference: bookkeeping, and positions, known to the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """The attention of one layer, as its module called for it."""

    name: str
    """Path of the module that calls attention."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    causal: bool
    window: int | None
    """Keys a query sees, as the argument of `model_window`; None is all."""
    scale: float
    softcap: float | None = None
    sinks: str = ""
    """Name of the module's parameter that holds them; empty where it has none."""
    alibi: bool = False
    arguments: tuple[Any, ...] = ()
    """(scaling, sliding_window, softcap) as called with, to hold later calls against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Which keys a mask lets a query see."""

    causal: bool
    window: int | None


@dataclass(slots=True, kw_only=True)
class _Trace:
    """Calls of attention in one run of a model."""

    names: Mapping[nn.Module, str]
    source: str
    cached: bool
    layers: dict[str, TracedLayer] = field(default_factory=dict)
    calls: int = 0

    def refuse(self, name: str, problem: str) -> ModelError:
        return ModelError(f"{self.source}: layer {name} {problem}")

    def record(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, arguments: dict[str, Any]
    ) -> None:
        name = self.names[module]
        unknown = {n: v for n, v in arguments.items() if n not in UNDERSTOOD | WITHOUT_EFFECT and v is not None}
        if unknown:
            asked = ", ".join(f"{n} = {_show(v)}" for n, v in unknown.items())
            raise self.refuse(
                name, f"({type(module).__name__}) calls attention with {asked}, which Headstock does not know"
            )
        if key.shape[2] != query.shape[2] or query.shape[0] != 1:
            raise self.refuse(name, "attends to other tokens than those of its own text, which is not supported")
        if query.shape[1] % key.shape[1]:
            raise self.refuse(name, f"has {query.shape[1]} query heads, no multiple of its {key.shape[1]} KV heads")
        seen = self._mask(name, module, mask, arguments)
        if not seen.causal and arguments.get("is_causal"):
            raise self.refuse(name, "is said to be causal, with a mask that is not")
        scaling, window = arguments.get("scaling"), arguments.get("sliding_window")
        if seen.causal and mask is not None and window is not None and window != seen.window:
            raise self.refuse(name, f"has a window of {window} keys, and a mask with a window of {seen.window}")
        softcap = arguments.get("softcap")
        layer = TracedLayer(
            name=name,
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_size=query.shape[3],
            head_size_v=value.shape[3],
            causal=seen.causal,
            window=seen.window,
            scale=1 / math.sqrt(query.shape[3]) if scaling is None else float(scaling),
            softcap=softcap,
            sinks=self._sinks(name, module, arguments.get("s_aux")),
            alibi=arguments.get("alibi_slopes") is not None,
            arguments=stated(arguments),
        )
        if self.layers.setdefault(name, layer) != layer or (self.cached and self.calls >= len(self.layers)):
            raise self.refuse(name, f"({type(module).__name__}) calls attention twice in a step, which has no cache")
        self.calls += 1

    def _mask(self, name: str, module: nn.Module, mask: Any, arguments: dict[str, Any]) -> Mask:
        if mask is None:
            causal = arguments.get("is_causal", getattr(module, "is_causal", None))
            if causal is None:
                raise self.refuse(name, "does not say whether its attention is causal")
            return Mask(causal=bool(causal), window=arguments.get("sliding_window"))
        if (seen := getattr(mask, "headstock_mask", None)) is None:
            raise self.refuse(name, "makes an attention mask of its own, and masks are not passed to backends")
        return seen

    def _sinks(self, name: str, module: nn.Module, sinks: Tensor | None) -> str:
        if sinks is None:
            return ""
        for attribute, parameter in module.named_parameters(recurse=False):
            if parameter is sinks:
                return attribute
        raise self.refuse(name, "computes its sinks (s_aux) anew at each step, which is not supported")


def stated(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a call of attention says in numbers."""
    return arguments.get("scaling"), arguments.get("sliding_window"), arguments.get("softcap")


_CURRENT: ContextVar[_Trace] = ContextVar("headstock_trace")


def trace(model: Any, source: str, *, cached: bool = True) -> tuple[tuple[TracedLayer, ...], int]:
    """The layers of `model` that call attention, in the order of their calls, and how many calls there were.

    A layer that calls twice, as ALBERT's do, is an error where K and V are `cached`.

    `model` is transformers', with its parameters on the meta device, and of no other use afterwards. Raises
    `ModelError` naming `source` and the layer where something is asked for that cannot be expressed.
    """
    _register()
    names = {module: name for name, module in model.named_modules()}
    run = _Trace(names=names, source=source, cached=cached)
    token = _CURRENT.set(run)
    use_attention(model, TRACE)
    _make_traceable(model)
    try:
        with torch.inference_mode():
            model(**_inputs(model))
    finally:
        _CURRENT.reset(token)
    return tuple(run.layers.values()), run.calls


def _inputs(model: Any) -> dict[str, Any]:
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": ids, "use_cache": False}
    return {name: value for name, value in inputs.items() if accepts(model, name)}


def accepts(model: nn.Module, name: str) -> bool:
    """Whether `model` can be called with an argument of this name."""
    return name in inspect.signature(model.forward).parameters


def _make_traceable(model: Any) -> None:
    """Turn off what looks at values: routing to experts one by one, and RoPE that follows the longest text."""
    model.config._experts_implementation = "batched_mm"
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.rope_type = "default"


def _register() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(TRACE, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TRACE, _make_mask)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **arguments: Any
) -> tuple[Tensor, None]:
    _CURRENT.get().record(module, query, key, value, attention_mask, arguments)
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


def _make_mask(
    *, mask_function: Callable[..., Any], q_length: int, kv_length: int, local_size: int | None = None, **_: Any
) -> Tensor:
    """A mask for tracing: an empty tensor of the right shape that carries what `mask_function` lets be seen."""
    mask = torch.empty(1, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    mask.headstock_mask = read_mask(mask_function, local_size, _CURRENT.get().source)  # pyright: ignore[reportAttributeAccessIssue]
    return mask


def read_mask(mask_function: Callable[..., Any], local_size: int | None, source: str) -> Mask:
    """What transformers' `mask_function` is, asked about positions near, far, and around a window of `local_size`.

    Raises `ModelError` where it is neither causal, causal with a window, nor sees everything within a distance.
    """
    near = {0, 1, 2, 3} | {n + d for k in range(2, FARTHEST) for n in (1 << k,) for d in (-1, 0, 1)}
    for edge in (local_size or 0, 2 * (local_size or 0)):
        near |= {max(0, edge + distance) for distance in (-1, 0, 1, 2)}
    places = torch.tensor(sorted(near))
    queries, keys = places[:, None], places[None, :]
    zero = torch.tensor(0)
    seen = torch.broadcast_to(mask_function(zero, zero, queries, keys), (len(places), len(places)))
    if seen.device.type == "meta":
        raise ModelError(f"{source}: its attention mask depends on the tokens, which is not supported")
    gap = queries - keys
    shapes = [(Mask(causal=True, window=None), gap >= 0), (Mask(causal=False, window=None), gap.abs() >= 0)]
    if local_size is not None:
        shapes.append((Mask(causal=True, window=local_size), (gap >= 0) & (gap < local_size)))
        shapes.append((Mask(causal=False, window=local_size + 1), gap.abs() <= local_size))
    for mask, expected in shapes:
        if torch.equal(seen, expected):
            return mask
    size = f" of size {local_size}" if local_size else ""
    raise ModelError(
        f"{source}: its attention mask{size} is neither causal, windowed nor bidirectional "
        "(chunked attention is of this kind), which is not supported"
    )


def _show(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
