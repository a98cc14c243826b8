"""`Form`: the attention that a definition of FlashInfer-Trace stands for, and both ways between it and a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.attention import AttentionSpec, model_window

DECODE, PREFILL, RAGGED = "gqa_paged_decode", "gqa_paged_prefill_causal", "gqa_ragged_prefill_causal"
OP_TYPES = {DECODE: "gqa_paged", PREFILL: "gqa_paged", RAGGED: "gqa_ragged"}
"""``op_type`` of each kind of definition."""
SUFFIXES = {"bfloat16": "", "float16": "_fp16", "float32": "_fp32"}
"""What a name says of the dtype; nothing is bfloat16, as in the data set of FlashInfer."""
RAGGED_BLOCK = 16
"""Tokens a block of the cache that ragged keys get."""
_NAME = re.compile(
    rf"(?P<kind>{DECODE}|{PREFILL}|{RAGGED})_h(?P<heads>\d{{1,6}})_kv(?P<kv>\d{{1,6}})_d(?P<size>\d{{1,6}})"
    r"(?:_ps(?P<page>\d{1,6}))?(?:_w(?P<window>\d{1,9}))?(?:_cap(?P<cap>\d{1,9}(?:\.\d{1,9})?))?(?P<suffix>_fp16|_fp32)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Grouped-query attention over pages of tokens or over ragged keys. The softmax scale is not part of it."""

    kind: str
    """`DECODE`: one query a sequence; `PREFILL`: several, the last tokens of their pages; `RAGGED`: keys without
    pages."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    page_size: int = 0
    """Tokens a page; 0 where there are none."""
    dtype: str
    """Of queries, keys, values and output: one of `SUFFIXES`."""
    window: int | None = None
    """Keys that a query sees, its own included."""
    softcap: float | None = None

    @property
    def op_type(self) -> str:
        return OP_TYPES[self.kind]

    @property
    def paged(self) -> bool:
        """Whether keys and values lie in pages."""
        return self.kind != RAGGED

    @property
    def last_page_len(self) -> bool:
        """Whether the length of a sequence's last page is an input: pages of one token are always full."""
        return self.page_size > 1

    @property
    def plain(self) -> bool:
        """Whether the schema's own names cover it: no window, no softcap."""
        return self.window is None and self.softcap is None

    @property
    def name(self) -> str:
        """As FlashInfer names its own, e.g. ``gqa_paged_decode_h32_kv8_d128_ps16``; what sets it apart comes last."""
        page = f"_ps{self.page_size}" if self.paged else ""
        window = f"_w{self.window}" if self.window is not None else ""
        cap = f"_cap{self.softcap:.9g}" if self.softcap is not None else ""
        heads = f"h{self.num_heads}_kv{self.num_kv_heads}_d{self.head_size}"
        return f"{self.kind}_{heads}{page}{window}{cap}{SUFFIXES[self.dtype]}"

    def spec(self, scale: float, *, lse: bool = False) -> AttentionSpec:
        """The layer of ours that attends like this. Ragged keys count as a cache of blocks."""
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
            block_size=self.page_size or RAGGED_BLOCK,
            window=model_window(self.window),
            scale=scale,
            softcap=self.softcap,
            lse=lse,
        )


def form_of(spec: AttentionSpec, rows: Sequence[tuple[int, int]]) -> Form:
    """The form of a step of `rows`, (new tokens, keys) each, in layers like `spec`, which `inexpressible` passed.

    As FlashInfer's own data set has it: steps without context are ragged, steps of one new token a row are decodes.
    """
    kind = PREFILL
    if all(new == 1 for new, _ in rows):
        kind = DECODE
    elif all(new == keys for new, keys in rows):
        kind = RAGGED
    return Form(
        kind=kind,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        page_size=0 if kind == RAGGED else spec.block_size,
        dtype=spec.dtype,
        window=None if spec.window is None or spec.window[0] < 0 else spec.window[0] + 1,
        softcap=spec.softcap,
    )


def inexpressible(spec: AttentionSpec) -> tuple[str, ...]:
    """Everything about layers like `spec` that no definition here can say; empty where one can."""
    plain = AttentionSpec(
        num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_size=spec.head_size, dtype=spec.dtype
    )
    found: list[str] = []
    if spec.dtype not in SUFFIXES:
        found.append(f"dtype is {spec.dtype}, and definitions have {', '.join(SUFFIXES)}")
    if spec.kind != "decoder":
        found.append(f"kind is {spec.kind}, not decoder")
    if spec.kv_source != "cache":
        found.append("its keys are in no cache, and nothing of them is recorded")
    if not spec.causal:
        found.append("it is not causal")
    if spec.latent is not None or spec.head_size_v != spec.head_size:
        found.append(f"heads of keys and values differ: {spec.head_size} and {spec.head_size_v} channels")
    if spec.kv_format != plain.kv_format:
        found.append(f"the cache holds {spec.kv_format}, and queries are {spec.dtype}")
    if spec.window is not None and spec.window[1] > 0:
        found.append(f"its window sees {spec.window[1]} keys ahead")
    if spec.masks:
        found.append(f"it may have masks ({', '.join(sorted(spec.masks))}), which are not recorded")
    found += [f"it has {name}, whose values are not recorded" for name in ("alibi", "sinks") if getattr(spec, name)]
    return tuple(found)


def read_name(name: str) -> Form | None:
    """The form that a name stands for; None for names of something else."""
    match = _NAME.fullmatch(name)
    if match is None or (match["page"] is None) != (match["kind"] == RAGGED):
        return None
    dtypes = {suffix: dtype for dtype, suffix in SUFFIXES.items()}
    return Form(
        kind=match["kind"],
        num_heads=int(match["heads"]),
        num_kv_heads=int(match["kv"]),
        head_size=int(match["size"]),
        page_size=int(match["page"] or 0),
        dtype=dtypes[match["suffix"] or ""],
        window=int(match["window"]) if match["window"] else None,
        softcap=float(match["cap"]) if match["cap"] else None,
    )
