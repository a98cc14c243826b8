"""What is right for a `Problem`, from the float64 reference, and how far a backend may be from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...core.attention import AttentionSpec
from ...core.attention.reference import attend_sequence
from .broken import Broken
from .data import data_of
from .problem import Problem

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff u of each dtype."""
STATEMENT = (
    "outputs may differ from float64 by max|v| * (u * (2 + L) + a * (n + 4 * (1 + L) * sqrt(D))), LSEs by "
    "(1 + L + ln(n + 1)) * (u' + 8a * sqrt(D)) + a * n: u is the unit roundoff of the dtype, u' the same but at "
    "least float32's, a that of the accumulation (float32, or float64 for that dtype), n the keys of the longest "
    "row, D the head size, L the largest |logit|; NaN and inf have to stand where they stand in the reference, and "
    "nowhere else"
)
"""The tolerance, for reports."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """The reference's answer."""

    out: Tensor
    """float64 (T, Hq, Dv)."""
    lse: Tensor
    """float64 (T, Hq)."""
    largest_value: float
    """Largest |v|."""
    largest_logit: float
    """Largest |scaled q·k|."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Absolute bounds, see `STATEMENT`."""

    out: float
    lse: float


@lru_cache(maxsize=4096)
def expected(problem: Problem) -> Expected:
    """Out and LSE of `problem`, row by row, from its sequences: no block is involved."""
    data, spec = data_of(problem), problem.spec
    outs: list[Tensor] = []
    lses: list[Tensor] = []
    values, logits = [1e-30], [0.0]
    start = 0
    for (num_queries, num_keys), keys, vals in zip(problem.rows, data.keys, data.values, strict=True):
        q = data.queries[start : start + num_queries]
        start += num_queries
        out, lse = attend_sequence(q, keys, vals, spec, sinks=data.sinks, alibi_slopes=data.slopes)
        outs.append(out)
        lses.append(lse)
        if num_queries and num_keys:
            values.append(float(vals.nan_to_num().abs().max()))
            logits.append(_largest_logit(q, keys, spec))
    return Expected(out=torch.cat(outs), lse=torch.cat(lses), largest_value=max(values), largest_logit=max(logits))


def tolerance(spec: AttentionSpec, num_keys: int, largest_value: float, largest_logit: float) -> Tolerance:
    """What rounding in the dtype and in the accumulation explains, and no more."""
    u = ROUNDOFF[spec.dtype]
    a = ROUNDOFF["float64" if spec.dtype == "float64" else "float32"]
    root_d = math.sqrt(spec.head_size)
    logits = 1 + largest_logit
    return Tolerance(
        out=largest_value * (u * (1 + logits) + a * (num_keys + 4 * logits * root_d)),
        lse=(logits + math.log(num_keys + 1)) * (max(u, ROUNDOFF["float32"]) + 8 * a * root_d) + a * num_keys,
    )


def tolerance_of(problem: Problem) -> Tolerance:
    """The bounds for `problem`."""
    right = expected(problem)
    longest = max((keys for _, keys in problem.rows), default=0)
    return tolerance(problem.spec, longest, right.largest_value, right.largest_logit)


def require_close(what: str, got: Tensor, wanted: Tensor, bound: float, convention: str = "") -> None:
    """Raise `Broken`, naming the worst place, unless |got - wanted| ≤ bound, with NaN and inf in the same places."""
    if got.shape != wanted.shape:
        raise Broken(f"{what} has shape {tuple(got.shape)}, not {tuple(wanted.shape)}", convention)
    got, wanted = got.double(), wanted.double()
    alike = (got == wanted) | (got.isnan() & wanted.isnan())
    distance = (got - wanted).abs()
    wrong = ~(alike | (distance.isfinite() & (distance <= bound)))
    if not bool(wrong.any()):
        return
    place = rest = int(torch.where(wrong, distance.nan_to_num(math.inf, math.inf), 0.0).argmax())
    index: list[int] = []
    for size in reversed(got.shape):
        rest, i = divmod(rest, size)
        index.insert(0, i)
    where = ", ".join(f"{name} {i}" for name, i in zip(("token", "head", "channel"), index, strict=False))
    raise Broken(
        f"{what} of {where} is {float(got.flatten()[place]):.6g}, not {float(wanted.flatten()[place]):.6g} "
        f"(tolerance {bound:.2g}; {int(wrong.sum())} of {wrong.numel()} numbers are off)",
        convention,
        stray=not math.isfinite(float(got.flatten()[place])),
    )


def _largest_logit(query: Tensor, keys: Tensor, spec: AttentionSpec) -> float:
    q = query.double().view(len(query), spec.num_kv_heads, spec.group_size, spec.head_size)
    logits = torch.einsum("thgd,nhd->thgn", q, keys.double())
    return abs(float(logits.nan_to_num().abs().max()) * spec.scale)
