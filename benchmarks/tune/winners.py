"""Who wins a race: right in every row, and shown to be faster than the one that has the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from ..ab.lines import ratio_over
from ..ab.verdicts import Ratio
from ..kernels.report import Row


def objection(rows: Sequence[Row], name: str) -> str:
    """Why a contender does not count; empty where it has a time in every row."""
    without = (row for row in rows if row.of(name) is None)
    reasons = (next((m.reason for m in row.measurements if m.name == name), row.skipped) for row in without)
    return next(reasons, "")


def mean_time(rows: Sequence[Row], name: str) -> float:
    """Microseconds, in the geometric mean over the rows; the contender has a time in each."""
    return geometric_mean(times[name] for times in times_of(rows).values())


def times_of(rows: Sequence[Row]) -> dict[str, Mapping[str, float]]:
    """Microseconds by shape and contender."""
    return {row.shape.label: {m.name: m.median_us for m in row.measurements if m.median_us is not None} for row in rows}


def winner_of(rows: Sequence[Row], names: Sequence[str]) -> tuple[str, Ratio]:
    """Of `names`, who have a time in every row: the first, unless others are shown to be faster; then the fastest of
    those. And how many times faster than the first it is."""
    first, *others = names
    ratios = {name: ratio_over(rows, first, name) for name in others}
    faster = [name for name, ratio in ratios.items() if ratio.word == "faster"]
    winner = min(faster, key=lambda name: mean_time(rows, name), default=first)
    return winner, ratios.get(winner, Ratio(estimate=1.0, low=1.0, high=1.0, pairs=0))
