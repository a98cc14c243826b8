"""What the store says: several runs side by side, and one series over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import log, sqrt
from statistics import median

from ..statistics import Interval, median_interval
from .records import Measurement, Run

BASE_RUNS = 8
"""A point is held against the median of so many points before it."""
USUAL, USUAL_RUNS = 0.02, 3
"""What two runs on the same machine differ by (a standard deviation, as a share), and how many runs that belief is
worth."""
SURE = 3.5
SCALED = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A subject of a run."""

    run: Run
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One metric of one workload."""

    workload: str
    metric: str
    unit: str
    values: tuple[float | None, ...]
    """One a column."""
    ratios: tuple[float | None, ...]
    """How many times better than the first column that has a value; above 1 is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs side by side."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    workloads_differ: bool
    """Lines are matched by metric alone, because no workload is in two runs; the numbers may not be comparable."""
    machines_differ: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a series."""

    run: Run
    value: float
    unit: str
    interval: Interval | None
    """Of the median of its samples; None without samples."""
    ratio: float | None
    """How many times better than the median of the points before; None for the first."""
    verdict: str
    """``"better"`` or ``"worse"`` where it lies beyond the points before it by more than runs differ; else empty."""
    package: str
    source_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one subject on one workload and machine, oldest point first."""

    subject: str
    workload: str
    metric: str
    machine_id: str
    points: tuple[Point, ...]


def compare(runs: Sequence[Run], *, metric: str = "*", workload: str = "*") -> Comparison:
    """The subjects of all `runs` as columns. `metric` and `workload` are names or patterns."""
    columns = tuple(Column(run=run, subject=subject) for run in runs for subject in run.subjects)
    each = [{(m.workload, m.metric): m for m in c.run.measurements if m.subject == c.subject} for c in columns]
    keys = list(dict.fromkeys(key for found in each for key in found))
    shared = any(sum(key in found for found in each) > 1 for key in keys)
    apart = not shared and len(columns) > 1 and all(len({m.workload for m in f.values()}) == 1 for f in each)
    if apart:
        each = [{("", metric): m for (_, metric), m in found.items()} for found in each]
        keys = list(dict.fromkeys(key for found in each for key in found))
    lines = [
        _line(place, metric_, [found.get((place, metric_)) for found in each])
        for place, metric_ in keys
        if fnmatchcase(metric_, metric) and (apart or fnmatchcase(place, workload))
    ]
    machines = {run.machine_id for run in runs if run.machine_id}
    return Comparison(columns=columns, lines=tuple(lines), workloads_differ=apart, machines_differ=len(machines) > 1)


def _line(workload: str, metric: str, found: Sequence[Measurement | None]) -> Line:
    base = next(m for m in found if m is not None)
    return Line(
        workload=workload,
        metric=metric,
        unit=base.unit,
        values=tuple(None if m is None else m.value for m in found),
        ratios=tuple(None if m is None else _better(m.value, base.value, m.better) for m in found),
    )


def _better(value: float, base: float, better: str) -> float | None:
    over, under = (value, base) if better == "higher" else (base, value)
    return over / under if under else None


def history(runs: Iterable[Run], subject: str, *, workload: str = "*", metric: str = "*") -> list[Series]:
    """The series of `subject` in `runs`, by workload, metric and machine."""
    found: dict[tuple[str, str, str], list[tuple[Run, Measurement]]] = {}
    for run in sorted(runs, key=lambda run: run.when):
        for m in run.measurements:
            if m.subject == subject and fnmatchcase(m.workload, workload) and fnmatchcase(m.metric, metric):
                found.setdefault((m.workload, m.metric, run.machine_id), []).append((run, m))
    return [
        Series(subject=subject, workload=place, metric=name, machine_id=machine, points=_points(entries))
        for (place, name, machine), entries in found.items()
    ]


def _points(entries: Sequence[tuple[Run, Measurement]]) -> tuple[Point, ...]:
    points: list[Point] = []
    for run, m in entries:
        before = points[-BASE_RUNS:]
        interval = median_interval(m.samples) if len(m.samples) > 1 else None
        ratio = _better(m.value, median(p.value for p in before), m.better) if before else None
        points.append(
            Point(
                run=run,
                value=m.value,
                unit=m.unit,
                interval=interval,
                ratio=ratio,
                verdict=_verdict(interval, before, m.better),
                package=m.package,
                source_hash=m.source_hash,
            )
        )
    return tuple(points)


def _verdict(own: Interval | None, before: Sequence[Point], better: str) -> str:
    """No more than the runs carry: days differ by more than the samples of one of them tell.

    The own median has to be further from that of the points before it than `SURE` times what runs differ by, and the
    own interval must not hold it. What runs differ by is the median absolute deviation of the logarithms, scaled to a
    standard deviation, and drawn towards `USUAL` as if that had been seen in `USUAL_RUNS` runs (a scaled inverse
    chi-squared prior; Gelman et al., Bayesian Data Analysis, section 2.6).
    """
    if own is None or not before or min(own.low, *(point.value for point in before)) <= 0:
        return ""
    values = [log(point.value) for point in before]
    centre, count = median(values), len(values)
    spread = SCALED * median(abs(value - centre) for value in values)
    variance = (USUAL_RUNS * USUAL**2 + (count - 1) * spread**2) / (USUAL_RUNS + count - 1)
    if abs(log(own.median) - centre) <= SURE * sqrt(variance * (1 + 1 / count)):
        return ""
    below, above = log(own.high) < centre, log(own.low) > centre
    if not below and not above:
        return ""
    return "better" if above == (better == "higher") else "worse"
