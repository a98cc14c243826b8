"""Whether an output is right: some of its rows against the float64 reference, before anything is timed and after."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from ...core.attention.reference import attend_row, visible
from .data import Pool, layer_params
from .draws import PLAIN, Draw
from .shapes import Shape

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
"""Largest error of a checked row as a share of the largest exact value among them, by dtype. Coarse on purpose: that a
backend keeps every convention is the conformance kit's matter; here a wrong page, head or scale must show."""
MOST_ROWS = 64
"""Sequences that are checked, where each has its own length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Exact outputs of a few rows."""

    tokens: tuple[int, ...]
    """Which query tokens."""
    rows: Tensor
    """float64 (len(tokens), Hq, D)."""
    tolerance: float

    def error(self, out: Tensor) -> float:
        """Largest error in the checked rows of `out` (T, Hq, D), relative; infinite where any number is not finite."""
        if not bool(out.isfinite().all()):
            return float("inf")
        found = out[list(self.tokens)].double().cpu()
        return float((found - self.rows).abs().max() / self.rows.abs().max())

    def problem(self, error: float) -> str:
        """What is wrong with an output of that error; empty where nothing is."""
        if error <= self.tolerance:
            return ""
        if error == float("inf"):
            return "wrong: the output is not finite everywhere"
        return f"wrong: error {error:.1e} against the float64 reference, allowed is {self.tolerance:.0e}"


def expected(shape: Shape, pool: Pool, dtype: str, draw: Draw = PLAIN, tokens: Collection[int] = ()) -> Expected:
    """Of `tokens`; else first and last query of the first and the last sequence, and one in the middle of the first; of
    sequences that are not alike those of all. `draw` is what the call's inputs were multiplied with."""
    starts = [0, *accumulate(queries for queries, _ in shape.sequences)]
    if not tokens:
        rows = range(min(shape.batch, MOST_ROWS)) if shape.rows else (0, shape.batch - 1)
        tokens = {starts[r] + q for r in rows for q in (0, shape.sequences[r][0] - 1)} | {shape.sequences[0][0] // 2}
    picks = tuple(sorted(tokens))
    exact = torch.stack([_exact(shape, pool, dtype, starts, token, draw) for token in picks])
    return Expected(tokens=picks, rows=exact, tolerance=TOLERANCE[dtype])


def suspects(outs: Sequence[Tensor]) -> set[int]:
    """Of outputs (T, Hq, D) for equal inputs, the tokens in which each differs most from the first: all rows are held
    against each other, and where that says anything the reference decides."""
    return {int((out - outs[0]).abs().amax(dim=(1, 2)).argmax()) for out in outs[1:]}


def _exact(shape: Shape, pool: Pool, dtype: str, starts: list[int], token: int, draw: Draw) -> Tensor:
    """float64 (Hq, D) of one query token; a KV head at a time, because the reference repeats keys for query heads."""
    sequence = bisect_right(starts, token) - 1
    queries, length = shape.sequences[sequence]
    spec, position = shape.spec(dtype), length - queries + token - starts[sequence]
    layer, group = layer_params("layer", spec), spec.group_size
    seen = visible(position, length, spec)
    keys, values = pool.tokens(sequence, seen.start, seen.stop)
    new = max(0, length - queries - seen.start)
    keys[new:] *= draw.key
    values[new:] *= draw.value
    query = pool.queries[token] * draw.query
    one = replace(spec, num_heads=group, num_kv_heads=1)
    away = torch.arange(position - seen.start, position - seen.stop, -1, dtype=torch.float64).abs()
    outs: list[Tensor] = []
    for h, q in enumerate(query.double().split(group)):
        own = slice(h * group, (h + 1) * group)
        sinks = None if layer.sinks is None else layer.sinks[own].double()
        bias = None if layer.alibi_slopes is None else -layer.alibi_slopes[own].double()[:, None] * away
        out, _ = attend_row(q, keys[:, h : h + 1].double(), values[:, h : h + 1].double(), one, bias=bias, sinks=sinks)
        outs.append(out)
    return torch.cat(outs)
