"""What paired measurements let one say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

CONFIDENCE = 0.95
TRIM = 0.2
"""Share of the measurements left out at each end: what a machine does now and then is no property of a kernel."""
RESAMPLES = 2000
LEAST = 6
"""Fewer pairs carry no verdict."""
LUCK = 0.015
"""Half the width that an interval has at least, in logarithms: two processes of one kernel are apart by up to so much
for as long as they live. Seen on equal arms a hundredth apart, whose intervals alone were a third of that."""
DOUBT = 2.0
"""Others who are busy all the time do not hinder two processes alike, round after round: so rounds are not independent,
and intervals that take them for that are too narrow. On two CPUs with twelve busy processes, equal arms were called
different in 9 of 24 comparisons before this."""
ROUNDS = 30
"""Pairs by default. With 3 % noise on each measurement a true difference of 5 % is missed in fewer than 1 of 20
comparisons, and two equal arms are called different in fewer than 7 of 100; a test simulates both."""

Word = Literal["faster", "slower", "no difference shown", "wrong", "failed", "not compared"]
"""Only the first three speak of speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times faster than the baseline."""

    estimate: float
    low: float
    high: float
    """Between `low` and `high` it is with 95 % confidence."""
    pairs: int

    @property
    def word(self) -> Word:
        """No more than the interval carries."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "no difference shown"

    def __str__(self) -> str:
        return f"×{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"  # noqa: RUF001


def paired_ratio(
    baseline: Sequence[Sequence[float]], other: Sequence[Sequence[float]], seed: int = 0, *, disturbed: bool = False
) -> Ratio:
    """Of times by shape and round: how many times faster `other` is, in the geometric mean over the shapes.

    Rounds are pairs: both arms had their turn in each, so that drift falls out. The interval is that of a bootstrap of
    the studentised 20 % trimmed mean of the log ratios (Yuen 1974; Wilcox 2012, chapter 4), which keeps its level with
    outliers and as few as ten pairs. With fewer than `LEAST` pairs it is the whole line.
    Where rounds count although they were `disturbed` it is wider by `DOUBT`, and by `LUCK` always.
    """
    pairs = min(len(row) for row in (*baseline, *other))
    logs = np.log([row[:pairs] for row in baseline]) - np.log([row[:pairs] for row in other])
    values = logs.mean(axis=0)
    if pairs < LEAST:
        return Ratio(estimate=float(np.exp(np.median(values))), low=0.0, high=math.inf, pairs=pairs)
    estimate, error = _trimmed(values)
    drawn = np.random.default_rng(seed).integers(0, pairs, (RESAMPLES, pairs))
    means, errors = _trimmed(values[drawn])
    moved = np.abs(means - estimate)
    # A resample of equal values has no spread: it says nothing where its mean did not move, and anything where it did.
    scaled = np.divide(moved, errors, out=np.where(moved > 0, np.inf, 0.0), where=errors > 0)
    half = float(np.quantile(scaled, CONFIDENCE, method="higher")) * float(error)
    half = math.hypot((DOUBT if disturbed else 1.0) * half, LUCK) if math.isfinite(half) else math.inf
    low, high = float(estimate) - half, float(estimate) + half
    return Ratio(
        estimate=float(np.exp(estimate)), low=float(np.exp(low)), high=float(np.exp(min(high, 700.0))), pairs=pairs
    )


def _trimmed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trimmed mean along the last axis, and its standard error from the winsorised variance."""
    count = values.shape[-1]
    cut = int(TRIM * count)
    ordered = np.sort(values, axis=-1)
    mean = ordered[..., cut : count - cut].mean(axis=-1)
    ordered[..., :cut] = ordered[..., cut : cut + 1]
    ordered[..., count - cut :] = ordered[..., count - cut - 1 : count - cut]
    error = ordered.std(axis=-1, ddof=1) / ((1 - 2 * cut / count) * math.sqrt(count))
    return mean, error


def drift(times: Sequence[float]) -> float:
    """How many times slower the last third of the rounds was than the first, by medians; 1 where there are few."""
    third = len(times) // 3
    return float(np.median(times[-third:]) / np.median(times[:third])) if third > 1 else 1.0
