"""Whether an output is right: some of its rows against the float64 reference, before anything is timed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from ...core.attention.reference import attend_row, visible
from .data import Pool, layer_params
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
        return float((out[list(self.tokens)].double() - self.rows).abs().max() / self.rows.abs().max())

    def problem(self, error: float) -> str:
        """What is wrong with an output of that error; empty where nothing is."""
        if error <= self.tolerance:
            return ""
        if error == float("inf"):
            return "wrong: the output is not finite everywhere"
        return f"wrong: error {error:.1e} against the float64 reference, allowed is {self.tolerance:.0e}"


def expected(shape: Shape, pool: Pool, dtype: str) -> Expected:
    """First and last query of the first and the last sequence, and one in the middle of the first; of sequences that
    are not alike those of all."""
    starts = [0, *accumulate(queries for queries, _ in shape.sequences)]
    rows = range(min(shape.batch, MOST_ROWS)) if shape.rows else (0, shape.batch - 1)
    picks = {starts[r] + q for r in rows for q in (0, shape.sequences[r][0] - 1)} | {shape.sequences[0][0] // 2}
    tokens = tuple(sorted(picks))
    exact = torch.stack([_exact(shape, pool, dtype, starts, token) for token in tokens])
    return Expected(tokens=tokens, rows=exact, tolerance=TOLERANCE[dtype])


def _exact(shape: Shape, pool: Pool, dtype: str, starts: list[int], token: int) -> Tensor:
    """float64 (Hq, D) of one query token; a KV head at a time, because the reference repeats keys for query heads."""
    sequence = bisect_right(starts, token) - 1
    queries, length = shape.sequences[sequence]
    spec, position = shape.spec(dtype), length - queries + token - starts[sequence]
    layer, group = layer_params("layer", spec), spec.group_size
    seen = visible(position, length, spec)
    keys, values = pool.tokens(sequence, seen.start, seen.stop)
    one = replace(spec, num_heads=group, num_kv_heads=1)
    away = torch.arange(position - seen.start, position - seen.stop, -1, dtype=torch.float64).abs()
    outs: list[Tensor] = []
    for h, q in enumerate(pool.queries[token].double().split(group)):
        own = slice(h * group, (h + 1) * group)
        sinks = None if layer.sinks is None else layer.sinks[own].double()
        bias = None if layer.alibi_slopes is None else -layer.alibi_slopes[own].double()[:, None] * away
        out, _ = attend_row(q, keys[:, h : h + 1].double(), values[:, h : h + 1].double(), one, bias=bias, sinks=sinks)
        outs.append(out)
    return torch.cat(outs)
