"""What a list of measurements says: medians, their spread, and intervals that assume nothing about distributions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median and how sure it is."""

    median: float
    low: float
    high: float
    coverage: float
    """Probability that the median of further measurements lies between `low` and `high`; below 0.95 where there are
    fewer than 6 measurements (then they are the extremes), and 0 for a single one."""


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median, and the narrowest symmetric pair of order statistics that holds it with `confidence`, if any does.

    The number of values below the true median is binomial(n, 1/2): the k-th smallest and k-th largest enclose it with
    probability 1 - 2·P(X < k). Nothing is assumed of the distribution but that the values are independent.
    """
    ordered = sorted(values)
    n, k, below = len(ordered), 1, 0.5 ** len(ordered)
    while k < (n + 1) // 2 and 1 - 2 * (more := below + math.comb(n, k) * 0.5**n) >= confidence:
        k, below = k + 1, more
    return Interval(
        median=statistics.median(ordered), low=ordered[k - 1], high=ordered[n - k], coverage=max(0.0, 1 - 2 * below)
    )


def spread(values: Sequence[float]) -> float:
    """Width of the middle half of the values (interquartile range) as a share of their median; 0 for a single one."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / statistics.median(values)


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Interval | None:
    """Median of the ratios of what was measured in the same rounds, by round; None where they share none.

    Drift of the machine that lasts longer than a round falls out of it.
    """
    rounds = sorted(numerator.keys() & denominator.keys())
    return median_interval([numerator[r] / denominator[r] for r in rounds]) if rounds else None
