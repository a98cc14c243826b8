"""`AttentionSpec`: everything about a layer's attention that a plan or a kernel may bake in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import InvalidInput
from .formats import DTYPE_FORMATS, kv_format

KINDS = ("decoder", "encoder", "cross", "latent")
"""Self-attention over a cache; bidirectional self-attention; attention to an encoder's states; MLA's latent form."""
KV_SOURCES = ("cache", "ragged")
"""K and V come from the paged cache, or straight from the step's own rows."""
MASKS = ("spans", "tree")
"""Extra masks a batch may carry: bidirectional spans (images), ancestor trees (speculation)."""
KV_SCALES = ("none", "tensor", "head")


def model_window(size: int | None, *, causal: bool = True) -> tuple[int, int] | None:
    """The `AttentionSpec.window` of a model's window of `size` keys, the current one included.

    Causal: `size` keys up to the current one. Not causal: keys with |i - j| < `size`.
    """
    if size is None:
        return None
    if size < 1:
        raise InvalidInput("sliding_window", f"must be at least 1 key, not {size}")
    return (size - 1, 0) if causal else (size - 1, size - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One layer's attention, as one rank sees it. Raises `InvalidInput` naming the field.

    `Capabilities` answers it field by field; a test holds that no field is left without an answer.
    """

    num_heads: int
    """Query heads of this rank."""
    num_kv_heads: int
    """Key/value heads of this rank; query head h reads KV head h // (num_heads // num_kv_heads)."""
    head_size: int
    """Channels of a query and key head."""
    head_size_v: int = 0
    """Channels of a value head; 0 means `head_size`."""
    dtype: str
    """Of query and output: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"float64"``."""
    kv_format: str = "auto"
    """Name in `KV_FORMATS`; ``"auto"`` stores K and V in `dtype`."""
    kv_scales: str = "none"
    """Scales of a scaled format: one a ``"tensor"`` or one a KV ``"head"``."""
    block_size: int = 16
    """Tokens a block of the cache; of no meaning where `kv_source` is ragged."""
    kind: str = "decoder"
    """One of `KINDS`."""
    kv_source: str = "cache"
    """One of `KV_SOURCES`."""
    causal: bool = True
    """Aligned bottom-right: the last query sees the last key."""
    window: tuple[int, int] | None = None
    """Keys seen before and after the current one, which is not counted; -1 is no bound. See `model_window`."""
    scale: float = 0.0
    """Multiplies q·k; 0 means 1/sqrt(head_size)."""
    softcap: float | None = None
    """Logits become cap·tanh(logit/cap), after the scale and before any bias or mask; None and 0 mean off."""
    alibi: bool = False
    """The layer has ALiBi slopes: -slope·|i - j| is added to the logits. Press et al. 2021."""
    sinks: bool = False
    """The layer has one sink logit a query head, entering the denominator once, unscaled. Xiao et al. 2023."""
    masks: frozenset[str] = frozenset()
    """Kinds of mask, of `MASKS`, that batches may carry."""
    latent: tuple[int, int] | None = None
    """MLA: (rank of the latent, rotary channels); `head_size` is their sum, V the first `head_size_v` channels of K."""
    lse: bool = False
    """The caller asks for the log-sum-exp of the rows."""
    batch_invariant: bool = False
    """The caller asks that a row's result does not depend, in any bit, on what else is in the batch."""

    def __post_init__(self) -> None:
        fill = object.__setattr__
        for name in ("num_heads", "num_kv_heads", "head_size", "block_size"):
            if getattr(self, name) < 1:
                raise InvalidInput(name, f"must be at least 1, not {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise InvalidInput("num_kv_heads", f"{self.num_heads} query heads are no multiple of {self.num_kv_heads}")
        if self.dtype not in DTYPE_FORMATS:
            raise InvalidInput("dtype", f"{self.dtype!r} is not one of {', '.join(DTYPE_FORMATS)}")
        for name, known in (("kind", KINDS), ("kv_source", KV_SOURCES), ("kv_scales", KV_SCALES)):
            if getattr(self, name) not in known:
                raise InvalidInput(name, f"{getattr(self, name)!r} is not one of {', '.join(known)}")
        if unknown := self.masks - set(MASKS):
            raise InvalidInput("masks", f"{sorted(unknown)} are not among {', '.join(MASKS)}")
        fill(self, "head_size_v", self.head_size_v or self.head_size)
        fill(self, "scale", self.scale or 1 / math.sqrt(self.head_size))
        fill(self, "softcap", _softcap(self.softcap))
        fill(self, "window", _window(self.window))
        fill(self, "kv_format", DTYPE_FORMATS[self.dtype] if self.kv_format == "auto" else self.kv_format)
        if not kv_format(self.kv_format).scaled and self.kv_scales != "none":
            raise InvalidInput("kv_scales", f"{self.kv_format} stores no scaled values")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def bytes_per_token(self) -> int:
        """Bytes that K and V of one token take in the cache of this layer."""
        channels = self.head_size if self.latent else self.head_size + self.head_size_v
        return self.num_kv_heads * channels * kv_format(self.kv_format).element_bytes


def spec_document(spec: AttentionSpec) -> dict[str, Any]:
    """`spec` in JSON's types; `read_spec` reads it."""
    return {**asdict(spec), "masks": sorted(spec.masks)}


def read_spec(document: Mapping[str, Any]) -> AttentionSpec:
    """The inverse of `spec_document`. Raises `TypeError`, `KeyError` or `InvalidInput` for what is no spec."""
    values: dict[str, Any] = {**document, "masks": frozenset(document["masks"])}
    for name in ("window", "latent"):
        values[name] = None if values[name] is None else tuple(values[name])
    return AttentionSpec(**values)


def _softcap(value: float | None) -> float | None:
    if value is None or value == 0:
        return None
    if not (value > 0 and math.isfinite(value)):
        raise InvalidInput("softcap", f"must be a positive number, not {value}")
    return value


def _window(value: tuple[int, int] | None) -> tuple[int, int] | None:
    if value is None or value == (-1, -1):
        return None
    if len(value) != 2 or min(value) < -1:
        raise InvalidInput("window", f"must be (keys before, keys after) with -1 for no bound, not {value}")
    return (value[0], value[1])
