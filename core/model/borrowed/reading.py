"""`borrow`: from a model folder to a `BorrowedConfig`, by building the model without weights and tracing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...attention import DTYPE_FORMATS
from ...errors import HeadstockError, ModelError
from ..architectures import MOST_LAYERS, unsupported_layers
from ..config_reader import read_json
from .alibi import adapt
from .config import BorrowedConfig
from .library import first_line, library, quiet
from .trace import TracedLayer, accepts, trace

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
"""Fields that state the longest text, in the order they are asked."""
UNBOUNDED_LENGTH = 2048
"""Longest text of models with ALiBi whose config states none: what those were trained with."""
EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
"""Fields that state how many experts a token is sent to."""
MIXING_LAYERS = ("mixture of experts", "latent attention (MLA)")
"""Kinds that only our own decoder lacks."""


def borrow(folder: Path, *, body: bool = False) -> BorrowedConfig:
    """The model in `folder`, to be run by transformers' modelling code. No weights are read.

    With `body` only what computes hidden states, of encoders too; else what generates text. Raises `ModelError` where
    transformers does not know the architecture or does not accept the config, where layers are of kinds that need a
    state beside the KV cache, or where attention is asked for what cannot be expressed.
    """
    source = str(folder / "config.json")
    raw = read_json(folder / "config.json")
    theirs = library()
    name = _body_of(raw, source, theirs) if body else _architecture(raw, source, theirs)
    _refuse(raw, name, source)
    config = _read(folder, source, theirs)
    if not 0 <= (count := config.get_text_config().num_hidden_layers) <= MOST_LAYERS:
        raise ModelError(f"{source}: field 'num_hidden_layers' must be from 0 to {MOST_LAYERS}, not {count}")
    cls = getattr(theirs, name)
    if cls._is_stateful:
        raise ModelError(f"{source}: architecture {name} is not supported: its layers keep a state beside the KV cache")
    model = build(cls, config, source)
    adapt(model)
    layers, calls = _layers(model, source, cached=not body)
    text = config.get_text_config()
    if not layers and not count:
        raise ModelError(f"{source}: {name} has no layers")
    if calls != count:
        raise ModelError(
            f"{source}: {name} has {count} layers, and {calls} of them call attention through transformers' "
            "AttentionInterface; the others compute something else, or attention by themselves, which is not supported"
        )
    if not body and not all(layer.causal for layer in layers):
        raise ModelError(f"{source}: {name} does not attend causally, so it cannot generate text; it may embed it")
    if not accepts(model.base_model, "position_ids") and not all(layer.alibi for layer in layers):
        raise ModelError(f"{source}: {name} takes no position_ids, so texts cannot be computed together")
    generation = folder / "generation_config.json"
    own = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return BorrowedConfig(
        architecture=name,
        implementation=f"transformers {theirs.__version__}",
        source=source,
        vocab_size=text.vocab_size,
        body=body,
        first_position=(first := _first_position(model)),
        max_position=_max_position(text, layers, source) - first,
        dtype=_dtype(config, source),
        layers=layers,
        bos_token_id=text.bos_token_id if isinstance(text.bos_token_id, int) else None,
        eos_token_ids=_tokens(text.eos_token_id if own is None else own, source),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_looked_up=_looked_up(model, text),
    )


def generates(folder: Path) -> bool:
    """Whether the model in `folder` is one that transformers lets generate text, or unknown to it altogether."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    raw = read_json(folder / "config.json")
    names, known = raw.get("architectures"), set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    return (
        not isinstance(names, list)
        or bool(known & {*map(str, names)})
        or raw.get("model_type") not in set(MODEL_MAPPING_NAMES)
    )


def _architecture(raw: Mapping[str, Any], source: str, theirs: Any) -> str:
    """The class that `config.json` names and transformers has, of those that generate text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ModelError(f"{source}: field 'architectures' must be a list of names, not {names!r}")
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    for name in names:
        if name in known:
            return name
    what = ", ".join(names) or raw.get("model_type", "of no stated kind")
    encodes = raw.get("model_type") in set(MODEL_MAPPING_NAMES)
    advice = "it may give texts vectors: headstock embed" if encodes else "a newer transformers may know it"
    note = "\n  the model brings its own code (auto_map), which Headstock never runs" if raw.get("auto_map") else ""
    raise ModelError(
        f"{source}: architecture {what} is not supported: it is neither Headstock's own nor among those that generate "
        f"text in transformers {theirs.__version__}.{note}\n  {advice}"
    )


def _body_of(raw: Mapping[str, Any], source: str, theirs: Any) -> str:
    """The class of transformers' that computes hidden states for models of this type."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    kind = raw.get("model_type")
    name = MODEL_MAPPING_NAMES.get(kind) if isinstance(kind, str) else None
    if not isinstance(name, str):
        raise ModelError(
            f"{source}: model_type {kind!r} is not supported: transformers {theirs.__version__} has no such model\n"
            "  a newer transformers may know it"
        )
    return name


def _first_position(model: Any) -> int:
    """RoBERTa and its kin count positions from behind the padding token's id."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1
    return 0


def _refuse(raw: Mapping[str, Any], name: str, source: str) -> None:
    """What speaks against a model before transformers is asked."""
    if quantised := raw.get("quantization_config"):
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else quantised
        raise ModelError(
            f"{source}: field 'quantization_config' says the weights are quantised ({method}), which is not read; "
            "use the original model"
        )
    text = raw.get("text_config")
    bad = [(i, k) for i, k in unsupported_layers(text if isinstance(text, dict) else raw) if k not in MIXING_LAYERS]
    if bad:
        raise ModelError(
            f"{source}: layer {bad[0][0]} of {name} is of kind {bad[0][1]!r}, which is not supported yet.\n"
            "  supported are full and sliding-window attention, and experts behind them; no weights were loaded"
        )


def _read(folder: Path, source: str, theirs: Any) -> Any:
    try:
        with quiet():
            return theirs.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever transformers' own checks raise
        raise ModelError(f"{source}: transformers does not accept this config ({first_line(error)})") from error


def build(cls: Any, config: Any, source: str) -> Any:
    """The model with its parameters on the meta device: shapes without memory."""
    try:
        with quiet(), torch.device("meta"):
            return cls._from_config(config, attn_implementation="eager").eval()
    except Exception as error:  # whatever transformers' modelling code raises for such a config
        raise ModelError(f"{source}: transformers cannot build this model ({first_line(error)})") from error


def _layers(model: Any, source: str, *, cached: bool) -> tuple[tuple[TracedLayer, ...], int]:
    try:
        with quiet():
            return trace(model, source, cached=cached)
    except HeadstockError:
        raise
    except Exception as error:  # modelling code that looks at values, which a model without weights has none of
        raise ModelError(
            f"{source}: {type(model).__name__} cannot be traced without its weights ({first_line(error)}), "
            "so what it asks of attention is not known"
        ) from error


def _max_position(text: Any, layers: tuple[TracedLayer, ...], source: str) -> int:
    """The longest text. RoPE of kind ``longrope`` turns otherwise beyond the training length, for all tokens before
    too: those that are cached would be wrong, so texts end there."""
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        trained = rope.get("original_max_position_embeddings") or text.original_max_position_embeddings
        return int(min(trained, text.max_position_embeddings))
    for name in LENGTHS:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    if all(layer.alibi for layer in layers):
        return UNBOUNDED_LENGTH
    raise ModelError(f"{source}: states no longest text; expected one of {', '.join(LENGTHS)}")


def _dtype(config: Any, source: str) -> str:
    name = str(config.dtype or "float32").removeprefix("torch.")
    if name not in DTYPE_FORMATS:
        raise ModelError(f"{source}: field 'dtype' is {name!r}; supported are {', '.join(DTYPE_FORMATS)}")
    return name


def _tokens(value: Any, source: str) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise ModelError(f"{source}: field 'eos_token_id' must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def _looked_up(model: Any, text: Any) -> int:
    """Weights that one token does not use: rows of embeddings that are no output, and experts it is not sent to."""
    output = model.get_output_embeddings()
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    if output is not None:
        tables.pop(id(output.weight), None)
    used = next((n for name in EXPERTS_USED if isinstance(n := getattr(text, name, None), int)), None)
    idle = 0
    for module in model.modules():
        if used is not None and type(module).__name__.endswith("Experts"):
            for parameter in module.parameters(recurse=False):
                idle += parameter.numel() * max(0, parameter.shape[0] - used) // parameter.shape[0]
    return sum(tables.values()) + idle
