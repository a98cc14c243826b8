"""Every named case, in the order of the conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .case import Case, Draft
from .cases import declaration, logits, masks, memory, numbers, offsets, placement, plans, sums, writing
from .conventions import CONVENTIONS
from .ground import Ground

Maker = Callable[[Ground, bool], Iterator[Draft]]
MAKERS: dict[str, Maker] = {
    "contract": declaration.contract,
    "keys": masks.keys,
    "determinism": memory.determinism,
    "causal": masks.causal,
    "empty-rows": masks.empty_rows,
    "window": masks.window,
    "heads": sums.heads,
    "scale": logits.scale,
    "range": logits.range_,
    "softcap": logits.softcap,
    "alibi": logits.alibi,
    "lse": sums.lse,
    "sinks": sums.sinks,
    "unowned": memory.unowned,
    "nan": memory.nan,
    "bounds": memory.bounds,
    "inputs": memory.inputs,
    "writing": writing.writing,
    "kv-formats": numbers.kv_formats,
    "sizes": numbers.sizes,
    "dtypes": numbers.dtypes,
    "precision": numbers.precision,
    "strides": memory.strides,
    "ragged": memory.ragged,
    "padding": memory.padding,
    "lengths": memory.lengths,
    "chunks": placement.chunks,
    "placement": placement.placement,
    "neighbours": placement.neighbours,
    "plans": plans.plans,
    "offsets": offsets.offsets,
    "graph": plans.graph,
    "layers": plans.layers,
    "declared": declaration.declared,
}
"""Convention → what makes its cases."""


def named_cases(ground: Ground, *, full: bool = False) -> Iterator[Case]:
    """The cases of every convention but `mixed`, which are made up; `full` has more sizes and dtypes."""
    for convention in CONVENTIONS:
        if convention in MAKERS:
            for name, judge, problem in MAKERS[convention](ground, full):
                yield Case(convention=convention, name=name, problem=problem, judge=judge)
