"""`Ground`: a plain layer that the backend offers, on which cases build; and samples of what it declares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...core.attention import DTYPE_FORMATS, AttentionSpec, Capabilities, Sizes, kv_format
from ...core.attention.spec import KINDS
from .broken import Broken
from .problem import Problem, Rows
from .subject import Subject

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""In the order in which closed forms like them."""
HEAD_SIZES = (16, 32, 64, 128, 8, 40, 72, 80, 96, 112, 192, 256, 576)
BLOCK_SIZES = (4, 2, 8, 16, 32, 64, 1, 128, 256)
GROUPS = (2, 4, 1, 3, 8, 5, 7, 16)
ROWS: Rows = ((1, 5), (1, 9), (3, 7), (4, 4))
"""A small batch: decode, decode, extend, prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What cases take where they do not say otherwise."""

    subject: Subject
    fields: dict[str, Any]
    """Of `AttentionSpec`."""
    layout: str

    @property
    def capabilities(self) -> Capabilities:
        return self.subject.capabilities

    def spec(self, **changes: Any) -> AttentionSpec:
        """The plain layer with these fields instead; K and V in the format of its dtype unless that is said."""
        values = {**self.fields, **changes}
        if "dtype" in changes and "kv_format" not in changes:
            values["kv_format"], values["kv_scales"] = _format(changes["dtype"], self.capabilities)
        if "num_kv_heads" in changes and "num_heads" not in changes:
            values["num_heads"] = changes["num_kv_heads"] * self.group
        return AttentionSpec(**values)

    @property
    def group(self) -> int:
        """Query heads a KV head of the plain layer."""
        return self.fields["num_heads"] // self.fields["num_kv_heads"]

    def problem(self, rows: Rows = ROWS, *, spec: dict[str, Any] | None = None, **own: Any) -> Problem:
        """A problem over the plain layer, with these fields of its spec and of its own instead."""
        values: dict[str, Any] = {"layout": self.layout, **own}
        return Problem(spec=self.spec(**spec or {}), rows=rows, **values)


def find_ground(subject: Subject) -> Ground:
    """The first plain layer that nothing speaks against. Raises `Broken` where the backend offers none at all."""
    caps = subject.capabilities
    kind = next((k for k in KINDS if k in caps.kinds), "decoder")
    source = "cache" if "cache" in caps.kv_sources else "ragged"
    layout = next((name for name in caps.layouts if name in subject.layouts), "nhd")
    causal = True in caps.causal
    first = ""
    for dtype, head, block, group in product(
        [d for d in DTYPES if d in caps.dtypes],
        samples(caps.head_sizes, HEAD_SIZES),
        samples(caps.block_sizes, BLOCK_SIZES) if source == "cache" else [16],
        samples(caps.group_sizes, GROUPS),
    ):
        stored, scales = _format(dtype, caps)
        fields: dict[str, Any] = {
            "num_heads": 2 * group,
            "num_kv_heads": 2,
            "head_size": head,
            "dtype": dtype,
            "kv_format": stored,
            "kv_scales": scales,
            "block_size": block,
            "kind": kind,
            "kv_source": source,
            "causal": causal,
        }
        reasons = subject.reasons(Problem(spec=AttentionSpec(**fields), rows=((1, 1),), layout=layout))
        if not reasons:
            return Ground(subject=subject, fields=fields, layout=layout)
        first = first or "; ".join(reasons)
    raise Broken(
        f"no plain layer is offered: {first or 'dtypes, head_sizes, block_sizes or group_sizes declare nothing'}"
    )


def samples(sizes: Sizes, wanted: Iterable[int]) -> list[int]:
    """Those of `wanted` that are declared, or else the least that is."""
    found = [n for n in wanted if n in sizes]
    return found or least(sizes)


def least(sizes: Sizes) -> list[int]:
    """The smallest declared size, as a list; empty where nothing is declared."""
    if sizes.only is not None:
        return sorted(n for n in sizes.only if n in sizes)[:1]
    step = sizes.multiple_of
    n = -(-max(sizes.low, 1) // step) * step
    return [n] if n in sizes else []


def _format(dtype: str, caps: Capabilities) -> tuple[str, str]:
    """KV format and scales for plain layers of `dtype`: that which stores it as it is, or else the first declared."""
    own = DTYPE_FORMATS[dtype]
    if own in caps.kv_formats or not caps.kv_formats:
        return own, "none"
    other = min(caps.kv_formats, key=lambda name: (kv_format(name).scaled, name))
    if not kv_format(other).scaled:
        return other, "none"
    return other, next((s for s in ("tensor", "head") if s in caps.kv_scales), "none")
