"""Results known without any softmax: what a uniform probe gives under masks, sinks and slopes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...core.attention import AttentionSpec
from .data import data_of
from .problem import Problem


def seen(spec: AttentionSpec, position: int, num_keys: int) -> tuple[int, int]:
    """First and last key that a query at `position` sees; the last is before the first where it sees none."""
    left, right = spec.window or (-1, -1)
    first = max(0, position - left) if left >= 0 else 0
    last = min(num_keys - 1, position + right) if right >= 0 else num_keys - 1
    return first, min(last, position) if spec.causal else last


def positions(problem: Problem) -> Iterator[tuple[int, int]]:
    """(position, keys) of each query token."""
    for queries, keys in problem.rows:
        for i in range(queries):
            yield keys - queries + i, keys


def probe_means(problem: Problem) -> Tensor:
    """float64 (T, Hq, Dv): output where q is 0, the mean of the values seen, and 0 where there is none.

    For fill ``probe``, as far as the KV format can store it, that is 1 + the mean position of the keys seen.
    """
    spec = problem.spec
    means: list[Tensor] = []
    for (queries, keys), values in zip(problem.rows, data_of(problem).values, strict=True):
        sums = torch.zeros(keys + 1, *values.shape[1:], dtype=torch.float64)
        torch.cumsum(values.double(), 0, out=sums[1:])
        spans = [seen(spec, keys - queries + i, keys) for i in range(queries)]
        first = torch.tensor([a for a, _ in spans], dtype=torch.long)
        count = torch.tensor([max(0, b - a + 1) for a, b in spans], dtype=torch.long)
        total = sums[first.clamp_max(keys) + count] - sums[first.clamp_max(keys)]
        means.append(total / count.clamp_min(1)[:, None, None])
    return torch.cat(means).repeat_interleave(spec.group_size, 1)


def probe_lse(problem: Problem) -> Tensor:
    """float64 (T, 1): ln of the number of keys seen."""
    counts = [count_seen(problem.spec, position, keys) for position, keys in positions(problem)]
    return torch.tensor([math.log(n) if n else -math.inf for n in counts], dtype=torch.float64)[:, None]


def count_seen(spec: AttentionSpec, position: int, num_keys: int) -> int:
    """Keys that a query at `position` sees."""
    first, last = seen(spec, position, num_keys)
    return max(0, last - first + 1)


def probe_with_sinks(problem: Problem) -> tuple[Tensor, Tensor]:
    """float64 (T, Hq, Dv) and LSE (T, Hq): n keys of weight 1 beside a sink of weight e^sink, which has no value."""
    sinks = data_of(problem).sinks
    assert sinks is not None, "the spec has sinks"
    weights = torch.exp(sinks.double())[None, :]
    counts = torch.tensor([count_seen(problem.spec, p, n) for p, n in positions(problem)], dtype=torch.float64)[:, None]
    total = counts + weights
    return probe_means(problem) * (counts / total)[:, :, None], torch.log(total)


def probe_with_alibi(problem: Problem) -> Tensor:
    """float64 (T, Hq, Dv): values weighted by e^(-slope·distance), summed as they stand."""
    slopes = data_of(problem).slopes
    assert slopes is not None, "the spec has ALiBi"
    out: list[Tensor] = []
    for (queries, keys), values in zip(problem.rows, data_of(problem).values, strict=True):
        by_head = values.double().repeat_interleave(problem.spec.group_size, 1)
        for position in range(keys - queries, keys):
            first, last = seen(problem.spec, position, keys)
            j = torch.arange(first, last + 1)
            weights = torch.exp(-slopes.double()[None, :] * (position - j).abs()[:, None])
            out.append((weights[:, :, None] * by_head[first : last + 1]).sum(0) / weights.sum(0)[:, None])
    return torch.stack(out)


def first_key_share(problem: Problem) -> Tensor:
    """float64 (T, 1, 1): output of fill ``first``: e^s / (e^s + n - 1), with s the scale, bent where there is a cap."""
    spec = problem.spec
    logit = spec.scale if spec.softcap is None else spec.softcap * math.tanh(spec.scale / spec.softcap)
    shares: list[float] = []
    for position, keys in positions(problem):
        first, last = seen(spec, position, keys)
        weight = math.exp(logit) if first == 0 else 0.0
        others = last - first + (0 if first == 0 else 1)
        shares.append(weight / (weight + others))
    return torch.tensor(shares, dtype=torch.float64)[:, None, None]
