"""`Capabilities`: what a backend offers, field by field against `AttentionSpec`. What is not declared is unsupported.

The idea of declared constants and of returning *all* reasons is that of xformers' fmha dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import cast

from .spec import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A set of positive integers, as data: `low` to `high`, multiples of `multiple_of`, and of those `only` some."""

    low: int = 1
    high: int | None = None
    multiple_of: int = 1
    only: frozenset[int] | None = None

    def __contains__(self, n: int) -> bool:
        in_range = self.low <= n and (self.high is None or n <= self.high)
        return in_range and n % self.multiple_of == 0 and (self.only is None or n in self.only)

    def __and__(self, other: Sizes) -> Sizes:
        highs = [h for h in (self.high, other.high) if h is not None]
        only = self.only if other.only is None else other.only if self.only is None else self.only & other.only
        return Sizes(
            low=max(self.low, other.low),
            high=min(highs) if highs else None,
            multiple_of=math.lcm(self.multiple_of, other.multiple_of),
            only=only,
        )

    def __str__(self) -> str:
        if self.only is not None:
            return ", ".join(map(str, sorted(n for n in self.only if n in self))) or "none"
        parts = [f"multiples of {self.multiple_of}"] if self.multiple_of > 1 else []
        if self.low > 1 or self.high is not None:
            parts.append(f"from {self.low} to {self.high}" if self.high is not None else f"from {self.low}")
        return " ".join(parts) or "any"


ANY = Sizes()
NOTHING = Sizes(only=frozenset())


def one_of(*sizes: int) -> Sizes:
    """The set of just these sizes."""
    return Sizes(only=frozenset(sizes))


class GraphSupport(IntEnum):
    """Which batches may be captured into a device graph; a group takes the least of its backends."""

    NEVER = 0
    SINGLE_TOKEN = 1
    """Batches of one query token a row."""
    UNIFORM = 2
    """Batches of equal query lengths."""
    ALWAYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do on one `Device`. Every default is "unsupported"."""

    dtypes: frozenset[str] = frozenset()
    kv_formats: frozenset[str] = frozenset()
    kv_scales: frozenset[str] = frozenset()
    """Scale granularities of scaled formats: ``"tensor"``, ``"head"``."""
    head_sizes: Sizes = NOTHING
    head_sizes_v: Sizes | None = None
    """Sizes of V's heads where they may differ from K's; None means they must be equal."""
    group_sizes: Sizes = NOTHING
    """Query heads a KV head."""
    block_sizes: Sizes = NOTHING
    kinds: frozenset[str] = frozenset()
    kv_sources: frozenset[str] = frozenset()
    causal: frozenset[bool] = frozenset()
    windows: frozenset[str] = frozenset()
    """``"left"``: bounded before the current key; ``"right"``: bounded after it, without being causal."""
    any_scale: bool = False
    """False: only 1/sqrt(head_size)."""
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    masks: frozenset[str] = frozenset()
    latents: frozenset[tuple[int, int]] = frozenset()
    lse: bool = False
    batch_invariant: bool = False
    layouts: tuple[str, ...] = ()
    """KV layouts it reads, best first; a KV group gets the first that all of its backends read."""
    graph: GraphSupport = GraphSupport.NEVER
    decode_query_len: int = 1
    """Rows with context and at most so many query tokens are sorted as decodes."""
    zero_length_rows: bool = False
    """Takes rows of no query token or no key."""
    padded_seq_len: int = 0
    """Length that padded rows must have: 0 or 1."""
    exact_seq_lens: bool = False
    """Needs `AttentionBatch.seq_lens_cpu`; the upper bound is not enough."""
    needs_zeroed_cache: bool = False
    """Reads slots that no sequence owns and relies on their being finite."""
    max_cache_elements: int = 2**31 - 1
    """Elements a plane may have before the backend's offsets overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One reason why a backend cannot serve a spec."""

    field: str
    """Field of `AttentionSpec`, or of `Capabilities` where the engine asks, e.g. ``"head_size"``."""
    asked: object
    offered: object
    """What the backend declares, or None where it declares nothing."""

    def __str__(self) -> str:
        return f"{self.field}: asked {_show(self.asked)}, offered {_show(self.offered)}"


def _show(value: object) -> str:
    if value is None or value is False:
        return "nothing"
    if isinstance(value, frozenset):
        return ", ".join(sorted(str(v) for v in cast("frozenset[object]", value))) or "nothing"
    return "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Rule:
    """How one field of a spec is held against one field of the capabilities."""

    asks: str
    offers: str
    unmet: Callable[[AttentionSpec, Capabilities], object]
    """What the spec asks that the capabilities do not give; None where they do."""


def _member(asks: str, offers: str) -> Rule:
    return Rule(asks, offers, lambda s, c: None if getattr(s, asks) in getattr(c, offers) else getattr(s, asks))


def _flag(asks: str, offers: str) -> Rule:
    return Rule(asks, offers, lambda s, c: getattr(s, asks) or None if not getattr(c, offers) else None)


def _head_size_v(spec: AttentionSpec, caps: Capabilities) -> object:
    if spec.latent or (caps.head_sizes_v is None and spec.head_size_v == spec.head_size):
        return None
    return None if caps.head_sizes_v is not None and spec.head_size_v in caps.head_sizes_v else spec.head_size_v


def _block_size(spec: AttentionSpec, caps: Capabilities) -> object:
    return None if spec.kv_source != "cache" or spec.block_size in caps.block_sizes else spec.block_size


def _group_size(spec: AttentionSpec, caps: Capabilities) -> object:
    if spec.group_size in caps.group_sizes:
        return None
    return f"{spec.num_heads} query heads over {spec.num_kv_heads} ({spec.group_size} each)"


def _window(spec: AttentionSpec, caps: Capabilities) -> object:
    if spec.window is None:
        return None
    left, right = spec.window
    need = ({"left"} if left >= 0 else set[str]()) | ({"right"} if right >= 0 and not spec.causal else set[str]())
    return None if need <= caps.windows else spec.window


def _scale(spec: AttentionSpec, caps: Capabilities) -> object:
    return None if caps.any_scale or math.isclose(spec.scale, 1 / math.sqrt(spec.head_size)) else spec.scale


RULES: tuple[Rule, ...] = (
    _member("dtype", "dtypes"),
    _member("kv_format", "kv_formats"),
    Rule("kv_scales", "kv_scales", lambda s, c: None if s.kv_scales in c.kv_scales | {"none"} else s.kv_scales),
    _member("head_size", "head_sizes"),
    Rule("head_size_v", "head_sizes_v", _head_size_v),
    Rule("num_heads", "group_sizes", _group_size),
    Rule("block_size", "block_sizes", _block_size),
    _member("kind", "kinds"),
    _member("kv_source", "kv_sources"),
    Rule("causal", "causal", lambda s, c: None if s.causal in c.causal else "causal" if s.causal else "not causal"),
    Rule("window", "windows", _window),
    Rule("scale", "any_scale", _scale),
    _flag("softcap", "softcap"),
    _flag("alibi", "alibi"),
    _flag("sinks", "sinks"),
    Rule("masks", "masks", lambda s, c: (s.masks - c.masks) or None),
    Rule("latent", "latents", lambda s, c: None if s.latent is None or s.latent in c.latents else s.latent),
    _flag("lse", "lse"),
    _flag("batch_invariant", "batch_invariant"),
)


def mismatches(spec: AttentionSpec, capabilities: Capabilities) -> tuple[Mismatch, ...]:
    """Every field of `spec` that `capabilities` does not cover; empty means it fits."""
    found: list[Mismatch] = []
    for rule in RULES:
        asked = rule.unmet(spec, capabilities)
        if asked is not None:
            found.append(Mismatch(field=rule.asks, asked=asked, offered=getattr(capabilities, rule.offers)))
    return tuple(found)


_LEAST = {"graph", "decode_query_len", "max_cache_elements"}
_ANY_NEEDS = {"exact_seq_lens", "needs_zeroed_cache", "padded_seq_len"}


def common(a: Capabilities, b: Capabilities) -> Capabilities:
    """What two backends that share a layer can do together: features of both, needs of either, the least of limits."""
    values: dict[str, object] = {}
    for name in (f.name for f in fields(Capabilities)):
        x, y = getattr(a, name), getattr(b, name)
        if name in _LEAST:
            values[name] = min(x, y)
        elif name in _ANY_NEEDS:
            values[name] = max(x, y)
        elif name == "layouts":
            values[name] = tuple(layout for layout in x if layout in y)
        elif name == "head_sizes_v":
            values[name] = None if x is None or y is None else x & y
        else:
            values[name] = x & y
    return Capabilities(**values)  # pyright: ignore[reportArgumentType]
