"""Reading Hugging Face's `config.json` into a `ModelConfig`: fields are checked, what is unknown is refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..attention import DTYPE_FORMATS
from ..errors import ModelError
from .architectures import ARCHITECTURES, MOST_LAYERS, Architecture, unsupported_layers
from .config import LayerConfig, ModelConfig
from .rope import ROPE_KINDS, RopeConfig, yarn_attention_factor

ABSENT: Any = object()
ROPE_FIELDS = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
"""Numbers that a kind of RoPE cannot do without."""


def read_config(folder: Path) -> ModelConfig:
    """The config of the model in `folder`: `config.json`, with the end tokens that `generation_config.json` names.

    Raises `ModelError` as `parse_config` does, and where a file is missing or no JSON. No weights are read.
    """
    path = folder / "config.json"
    config = read_json(path)
    generation = folder / "generation_config.json"
    if generation.is_file() and (own := read_json(generation)).get("eos_token_id") is not None:
        config = {**config, "eos_token_id": own["eos_token_id"]}
    return parse_config(config, str(path))


def read_json(path: Path) -> dict[str, Any]:
    """The object in the JSON file `path`. Raises `ModelError` where there is none."""
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds {type(value).__name__}, not an object")
    return value


def read_json_value(path: Path) -> Any:
    """What the JSON file `path` holds. Raises `ModelError` where it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON ({error}); download the file again") from error


def parse_config(config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """The model that the contents `config` of a `config.json` describe.

    Raises `ModelError` naming `source` and the field where a value is missing or wrong, the architecture or the kind of
    a layer is not supported, or the weights are quantised in a way that is not read.
    """
    fields = _Fields(config, source)
    name, architecture = _architecture(fields)
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        problem = (
            f"is {kv_heads}, which does not divide num_attention_heads = {heads}: query heads share KV heads evenly"
        )
        raise fields.wrong("num_key_value_heads", problem)
    if fields.get("head_dim", architecture.head_size) is None and hidden % heads:
        raise fields.wrong(
            "hidden_size", f"is {hidden}, no multiple of num_attention_heads = {heads}, and head_dim is missing"
        )
    head_size = fields.size("head_dim", architecture.head_size or hidden // heads)
    if head_size % 2:
        raise fields.wrong("head_dim", f"is {head_size}; RoPE needs an even number of channels")
    biased = fields.flag("attention_bias", False)
    max_position = fields.size("max_position_embeddings")
    multipliers = fields if architecture.multipliers else _Fields({}, source)
    return ModelConfig(
        architecture=name,
        source=source,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        max_position=max_position,
        rms_norm_eps=fields.positive("rms_norm_eps"),
        rope=_rope(fields, architecture, max_position, head_size),
        layers=_layers(fields, architecture),
        dtype=_dtype(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings", architecture.tied),
        qkv_bias=biased if architecture.qkv_bias is None else architecture.qkv_bias,
        output_bias=biased if architecture.output_bias is None else architecture.output_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        qk_norm=architecture.qk_norm,
        attention_scale=multipliers.number("attention_multiplier", 1.0 if architecture.multipliers else 0.0),
        embedding_multiplier=multipliers.number("embedding_multiplier", 1.0),
        residual_multiplier=multipliers.number("residual_multiplier", 1.0),
        logits_divisor=multipliers.number("logits_scaling", 1.0),
        bos_token_id=fields.token("bos_token_id"),
        eos_token_ids=fields.tokens("eos_token_id"),
    )


class _Fields:
    """The fields of a config file, checked as they are read."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self._prefix = prefix

    def wrong(self, name: str, problem: str) -> ModelError:
        return ModelError(f"{self.source}: field {self._prefix + name!r} {problem}")

    def get(self, name: str, default: Any = ABSENT) -> Any:
        """The value; a null counts as absent, and is an error where there is no `default`."""
        value = self.values.get(name)
        if value is not None:
            return value
        if default is ABSENT:
            raise self.wrong(name, "is missing")
        return default

    def size(self, name: str, default: Any = ABSENT, most: int = 2**31 - 1) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(name, f"must be a whole number from 1 to {most}, not {shown(value)}")
        return value

    def number(self, name: str, default: Any = ABSENT) -> float:
        value = self.get(name, default)
        return self._finite(name, value)

    def positive(self, name: str, default: Any = ABSENT) -> float:
        if (value := self.number(name, default)) <= 0:
            raise self.wrong(name, f"must be above 0, not {value}")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers."""
        values = self.get(name)
        if not isinstance(values, list) or len(values) != count:
            raise self.wrong(name, f"must be a list of {count} numbers, not {shown(values)}")
        found = tuple(self._finite(name, value) for value in values)
        if min(found) <= 0:
            raise self.wrong(name, f"must hold numbers above 0, not {min(found)}")
        return found

    def _finite(self, name: str, value: Any) -> float:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not known or not abs(value) <= sys.float_info.max:
            raise self.wrong(name, f"must be a finite number, not {shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, not {value!r}")
        return value

    def table(self, name: str) -> _Fields:
        """The fields of the object `name`; none where it is absent."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be an object, not {value!r}")
        return _Fields(value, self.source, f"{name}.")

    def tokens(self, name: str) -> tuple[int, ...]:
        value = self.get(name, [])
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise self.wrong(name, f"must be a token id or a list of them, not {value!r}")
        return tuple(ids)

    def token(self, name: str) -> int | None:
        return next(iter(self.tokens(name)), None)


def shown(value: Any) -> str:
    """`value` for a message: what a file holds can be long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _architecture(fields: _Fields) -> tuple[str, Architecture]:
    names = fields.get("architectures", [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise fields.wrong("architectures", f"must be a list of names, not {names!r}")
    what = ", ".join(names) or str(fields.get("model_type", "of no stated kind"))
    _refuse_layers(fields.table("text_config").values or fields.values, what, fields.source)
    for name in names:
        if name in ARCHITECTURES:
            _refuse_variants(fields, name)
            return name, ARCHITECTURES[name]
    own = fields.values.get("auto_map")
    note = "\n  the model brings its own code (auto_map), which Headstock never runs" if own else ""
    raise ModelError(
        f"{fields.source}: architecture {what} is not supported.{note}\n  supported are: {', '.join(ARCHITECTURES)}"
    )


def _refuse_layers(config: Mapping[str, Any], what: str, source: str) -> None:
    bad = list(unsupported_layers(config))
    if bad:
        kinds = ", ".join(f"{kind} ({sum(k == kind for _, k in bad)})" for kind in dict.fromkeys(k for _, k in bad))
        raise ModelError(
            f"{source}: layer {bad[0][0]} of {what} is of kind {bad[0][1]!r}, which is not supported yet.\n"
            f"  unsupported layers by kind: {kinds}; supported are full and sliding-window attention\n"
            "  no weights were loaded"
        )


def _refuse_variants(fields: _Fields, name: str) -> None:
    if (activation := fields.get("hidden_act", "silu")) != "silu":
        raise fields.wrong("hidden_act", f"is {activation!r}; {name} is supported with 'silu' only")
    if quantised := fields.table("quantization_config").values:
        method = quantised.get("quant_method", "unknown")
        raise fields.wrong(
            "quantization_config",
            f"says the weights are quantised ({method}), which is not read; use the original model",
        )


def _dtype(fields: _Fields) -> str:
    value = fields.get("dtype", fields.get("torch_dtype", "float32"))
    name = str(value).removeprefix("torch.")
    if name not in DTYPE_FORMATS:
        raise fields.wrong("dtype", f"is {value!r}; supported are {', '.join(DTYPE_FORMATS)}")
    return name


def _layers(fields: _Fields, architecture: Architecture) -> tuple[LayerConfig, ...]:
    count = fields.size("num_hidden_layers", most=MOST_LAYERS)
    rotated = _rotated(fields, architecture, count)
    window = fields.size("sliding_window") if fields.get("sliding_window", None) is not None else None
    optional = architecture.windows in ("from_layer", "without_rope")
    if architecture.windows == "never" or (optional and not fields.flag("use_sliding_window", False)):
        window = None
    kinds = fields.get("layer_types", None)
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != count:
            found = f"{len(kinds)} entries" if isinstance(kinds, list) else shown(kinds)
            raise fields.wrong("layer_types", f"must be a list of {count} kinds, one a layer, not {found}")
        windowed = [kind == "sliding_attention" for kind in kinds]
    elif architecture.windows == "from_layer":
        first = fields.number("max_window_layers", 28)  # the default of the architectures with this rule
        windowed = [index >= first for index in range(count)]
    elif architecture.windows == "without_rope":
        windowed = [not rope for rope in rotated]
    else:
        windowed = [True] * count
    if window is None:
        windowed = [False] * count
    return tuple(LayerConfig(window=window if w else None, rope=r) for w, r in zip(windowed, rotated, strict=True))


def _rotated(fields: _Fields, architecture: Architecture, count: int) -> list[bool]:
    """Which of `count` layers have RoPE."""
    if not architecture.nope_interval:
        return [True] * count
    interval = fields.size("no_rope_layer_interval", architecture.nope_interval)
    marks = fields.get("no_rope_layers", [(index + 1) % interval != 0 for index in range(count)])
    if not isinstance(marks, list) or len(marks) < count:
        raise fields.wrong("no_rope_layers", f"must be a list of {count} entries, one a layer, not {marks!r}")
    return [bool(mark) for mark in marks[:count]]


def _rope(fields: _Fields, architecture: Architecture, max_position: int, head_size: int) -> RopeConfig:
    """RoPE as transformers 5 states it (`rope_parameters`), or as before (`rope_theta` and `rope_scaling`)."""
    name = "rope_parameters" if fields.get("rope_parameters", None) is not None else "rope_scaling"
    rope = fields.table(name)
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise fields.wrong(name, "differs by layer type, which is not supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_KINDS:
        raise rope.wrong(
            "rope_type", f"is {shown(kind)}, which is not supported; supported are {', '.join(ROPE_KINDS)}"
        )
    for place in (rope, fields):
        if (part := place.number("partial_rotary_factor", 1.0)) != 1.0:
            raise place.wrong("partial_rotary_factor", f"is {part}; rotating a part of the channels is not supported")
    values: dict[str, Any] = {field: rope.positive(field) for field in ROPE_FIELDS.get(kind, ())}
    if kind in ("llama3", "yarn"):
        values["original_max_position"] = rope.size("original_max_position_embeddings", max_position)
    if kind == "yarn":
        implied = yarn_attention_factor(
            values["factor"], rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
        )
        values["attention_factor"] = rope.number("attention_factor", implied)
        values |= {"beta_fast": rope.positive("beta_fast", 32.0), "beta_slow": rope.positive("beta_slow", 1.0)}
        values["truncate"] = rope.flag("truncate", True)
    if kind == "divisors":
        values["divisors"] = rope.numbers("divisors", head_size // 2)
    if kind == "llama3" and values["low_freq_factor"] >= values["high_freq_factor"]:
        raise rope.wrong("low_freq_factor", f"must be below high_freq_factor, not {values['low_freq_factor']}")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", architecture.theta))
    if kind == "yarn" and theta <= 1:
        raise rope.wrong("rope_theta", f"must be above 1 for yarn, not {theta}")
    return RopeConfig(theta=theta, kind=kind, **values)
