"""Rows from what the rounds gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from ..interleave import Pace, Samples
from ..statistics import Interval, paired_ratio, spread
from .check import Expected
from .contenders import KernelContender, Start
from .limits import Limit
from .report import Measurement, Row, Versus
from .shapes import Shape

ALONE = -1
"""Round of a measurement that was made by itself, before the rounds."""
LIMIT = "(limit)"
"""Name of the limit among the contenders of a row; no backend is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row to be."""

    shape: Shape
    dtype: str
    threads: int


def about(name: str, contender: KernelContender, start: Start, exact: Expected) -> Measurement:
    error = exact.error(start.out)
    problem = exact.problem(error)
    return Measurement(
        name=name,
        reason=problem,
        failed=bool(problem),
        block_size=contender.block_size,
        layout=contender.layout,
        error=error if error != float("inf") else None,
        plan_us=start.plan_seconds * 1e6,
    )


def failed(name: str, reason: str) -> Measurement:
    return Measurement(name=name, reason=f"failed: {reason}", failed=True)


def new_row(task: Task, **fields: object) -> Row:
    shape = task.shape
    kv_bytes, flops = shape.kv_bytes(task.dtype), shape.flops
    base = Row(shape=shape, dtype=task.dtype, threads=task.threads, kv_bytes=kv_bytes, flops=flops)
    return replace(base, **fields)  # pyright: ignore[reportArgumentType]


def finished(
    task: Task,
    results: Mapping[str, Measurement],
    samples: Samples,
    paces: Mapping[str, Pace],
    single: Mapping[str, float],
    limit: Limit | None,
) -> Row:
    """Put what the rounds gave together with what was known before."""
    by_reading = task.shape.phase == "decode"
    work = task.shape.kv_bytes(task.dtype) if by_reading else task.shape.flops
    times: dict[str, Mapping[int, float]] = {name: samples.seconds[name] for name in paces if name != LIMIT}
    times |= {name: {ALONE: seconds} for name, seconds in single.items()}
    reached = {n: limit.work / seconds for n, seconds in samples.seconds[LIMIT].items()} if limit else {}
    fastest = sorted(times, key=lambda name: _median(times[name]))

    def complete(m: Measurement) -> Measurement:
        if m.name not in times:
            return m
        own = times[m.name]
        ratios = [(other, _ratio(times[other], own)) for other in fastest if other != m.name]
        return replace(
            m,
            median_us=_median(own) * 1e6,
            spread=spread(list(own.values())),
            samples_us=tuple(own[number] * 1e6 for number in sorted(own)),
            calls=paces[m.name].calls if m.name in paces else 1,
            rate=work / _median(own) / 1e9,
            share=_ratio({number: work / seconds for number, seconds in own.items()}, reached) if reached else None,
            versus=tuple(Versus(name=other, ratio=ratio) for other, ratio in ratios),
        )

    return new_row(
        task,
        unit="GB/s" if by_reading else "GFLOP/s",
        limit=limit.name if limit else "",
        limit_rate=limit.rate(_median(samples.seconds[LIMIT])) if limit else None,
        measurements=tuple(complete(m) for m in results.values()),
        rounds=samples.rounds,
        disturbed=len(samples.disturbed),
        kept_disturbed=samples.kept_disturbed,
        other_load=samples.other_load,
    )


def _ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Interval:
    """Of what shares rounds, the median ratio by round; else that of the medians, of which nothing is sure."""
    paired = paired_ratio(numerator, denominator)
    if paired is not None:
        return paired
    ratio = _median(numerator) / _median(denominator)
    return Interval(median=ratio, low=ratio, high=ratio, coverage=0.0)


def _median(times: Mapping[int, float]) -> float:
    return median(times.values())
