"""What was measured, as values, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..machine import Machine
from ..statistics import Interval
from .shapes import LAYERS, Shape

SCHEMA = "headstock.bench.kernels/1"
"""Name and version of the JSON document; new fields may come under the same version."""
CACHE_BYTES = 32 * 2**20
"""Taken for the last-level cache where the system does not tell its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """How many times faster than another contender."""

    name: str
    ratio: Interval
    """Of the other's time to the own one, in the same rounds: above 1 is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One contender in one row."""

    name: str
    reason: str = ""
    """Why it has no time: does not fit, failed, or its output is wrong; empty where it has one."""
    failed: bool = False
    """Whether it should have had one."""
    block_size: int | None = None
    layout: str | None = None
    error: float | None = None
    """Largest error of the checked rows against the float64 reference, as a share of the largest exact value."""
    plan_us: float | None = None
    """Microseconds of a step's plan, shared by its layers."""
    median_us: float | None = None
    """Microseconds a call."""
    spread: float | None = None
    """Interquartile range over the median."""
    samples_us: tuple[float, ...] = ()
    """One a round, in order: the median of the round's calls."""
    calls: int = 0
    """Calls a round."""
    grown_bytes: int = 0
    """Memory that its process, where it has one of its own, took on during the rounds."""
    rate: float | None = None
    """GB/s of K and V read once, or GFLOP/s; see `Row.unit`."""
    share: Interval | None = None
    """Of the limit, in the same rounds."""
    versus: tuple[Versus, ...] = ()
    """All others that have a time, fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One shape in one dtype on a number of threads."""

    shape: Shape
    dtype: str
    threads: int
    kv_bytes: int
    flops: int
    unit: str = ""
    limit: str = ""
    """What the share refers to."""
    limit_rate: float | None = None
    """In `unit`."""
    measurements: tuple[Measurement, ...] = ()
    rounds: int = 0
    disturbed: int = 0
    """Rounds in which others kept the CPUs busy."""
    kept_disturbed: bool = False
    """Those rounds are counted, because without them too few would be left: measure again on a quiet machine."""
    other_load: float | None = None
    """CPUs that others kept busy, on average; None where too short to tell."""
    skipped: str = ""
    """Why nothing was measured."""

    def of(self, name: str) -> Measurement | None:
        """A contender's measurement, where it has a time."""
        return next((m for m in self.measurements if m.name == name and m.median_us is not None), None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"shape": self.shape.label, "sizes": asdict(self.shape)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """A limit of the machine by itself, before or after everything else; rows have their own, measured beside them."""

    name: str
    threads: int
    unit: str
    rate: float
    """In `unit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contender as a whole."""

    name: str
    package: str
    """Distribution and version."""
    source_hash: str = ""
    """Of its source files; empty for peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The first contender over many rows."""

    what: str
    """``"decode beyond the cache"``, ``"decode within the cache"``, ``"prefill"``, ``"chunk"``."""
    dtype: str
    threads: int
    rows: int
    share: float
    """Median of its shares of the limit."""
    least_share: float
    versus: Mapping[str, float]
    """Median of its ratios to each other contender."""
    slower: tuple[str, ...]
    """Shapes in which the fastest other is faster beyond doubt: the interval of the ratio ends below 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run."""

    machine: Machine
    command: str
    load_before: float | None
    load_after: float | None
    """Load average of the last minute."""
    seconds: float
    entrants: tuple[Entrant, ...]
    limits_before: tuple[LimitRow, ...]
    limits_after: tuple[LimitRow, ...]
    overheads: tuple[Row, ...]
    """Calls on one sequence of one token."""
    rows: tuple[Row, ...]
    interrupted: bool = False
    """Rows are missing."""

    @property
    def failures(self) -> list[str]:
        """Contenders that should have had a time and have none."""
        found = [(r, m) for r in (*self.overheads, *self.rows) for m in r.measurements if m.failed]
        return [f"{m.name}, {r.shape.label} {r.dtype} {threads_text(r.threads)}: {m.reason}" for r, m in found]

    def summaries(self) -> list[Summary]:
        """What the rows say of the first contender; empty where it has no time."""
        groups: dict[tuple[str, str, int], list[Row]] = {}
        for row in self.rows:
            if row.of(self.entrants[0].name):
                groups.setdefault((self._kind(row), row.dtype, row.threads), []).append(row)
        return [_summary(self.entrants[0].name, key, rows) for key, rows in groups.items()]

    def _kind(self, row: Row) -> str:
        if row.shape.phase != "decode":
            return row.shape.phase
        within = row.kv_bytes <= (self.machine.last_level_bytes or CACHE_BYTES)
        return f"decode {'within' if within else 'beyond'} the cache"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "machine": self.machine.to_dict(),
            "load_average": {"before": self.load_before, "after": self.load_after},
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "contenders": [asdict(entrant) for entrant in self.entrants],
            "limits": {
                "before": [asdict(limit) for limit in self.limits_before],
                "after": [asdict(limit) for limit in self.limits_after],
            },
            "overheads": [row.to_dict() | {"layers": LAYERS} for row in self.overheads],
            "rows": [row.to_dict() for row in self.rows],
            "summary": [asdict(summary) for summary in self.summaries()],
        }


def layer_call_us(measurement: Measurement) -> float:
    """Overhead of a layer's call where `LAYERS` layers share a plan, in microseconds, for a row of `overheads`."""
    return (measurement.plan_us or 0.0) / LAYERS + (measurement.median_us or 0.0)


def threads_text(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _summary(name: str, key: tuple[str, str, int], rows: Sequence[Row]) -> Summary:
    own = [(row, m) for row in rows if (m := row.of(name))]
    shares = [m.share.median for _, m in own if m.share]
    ratios: dict[str, list[float]] = {}
    for _, m in own:
        for versus in m.versus:
            ratios.setdefault(versus.name, []).append(versus.ratio.median)
    return Summary(
        what=key[0],
        dtype=key[1],
        threads=key[2],
        rows=len(own),
        share=median(shares),
        least_share=min(shares),
        versus={other: median(values) for other, values in ratios.items()},
        slower=tuple(_slower(own)),
    )


def _slower(own: Sequence[tuple[Row, Measurement]]) -> Iterator[str]:
    for row, m in own:
        if m.versus and m.versus[0].ratio.high < 1:
            yield row.shape.label
