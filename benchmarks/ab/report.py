"""What a comparison says, as values and as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from typing import Any

import msgspec

from ..machine import Machine
from ..results.records import Better
from .verdicts import Ratio, Word

SCHEMA = "headstock.ab/1"
"""Name and version of the JSON document; new fields may come under the same version."""
MEMORY = ("peak_device_memory", "peak_memory")
"""Metrics of the memory that counts, the first that there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """An arm, and what speaks against it before anything is timed."""

    label: str
    backend: str
    options: Mapping[str, Any]
    python: str
    package: str
    """Distribution and version."""
    torch: str
    source_hash: str
    problems: tuple[str, ...] = ()
    """A wrong arm gets no speed verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One workload: a shape in a dtype on a number of threads, or a metric of the whole engine."""

    name: str
    unit: str
    metric: str = "time"
    better: Better = "lower"
    values: Mapping[str, float]
    """Median by arm; an arm that has none is left out."""
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """Largest error against float64 by arm, as a share of the largest exact value."""
    ratios: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    """How many times better than the baseline, by arm."""
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why an arm has no value here."""
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """By arm, one a round."""
    drift: float = 1.0
    """How many times slower the baseline was at the end than at the start."""
    other_load: float | None = None
    """CPUs that others kept busy, on average."""

    @property
    def title(self) -> str:
        """For tables: the workload, with the metric where that is not plain time."""
        return self.name if self.metric == "time" else f"{self.name}: {self.metric}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against the baseline."""

    arm: str
    verdict: Word
    ratio: Ratio | None
    """Over all lines, in the geometric mean; None where there is nothing to say about speed."""
    reasons: tuple[str, ...] = ()
    """Why it is wrong, has failed or cannot be compared."""

    def __str__(self) -> str:
        return self.verdict if self.ratio is None else f"{self.verdict} {self.ratio}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An arm among others; in everything less is better."""

    time: float
    """As a share of the baseline's, in the geometric mean over all lines."""
    error: float
    """The largest; of whole engines the mean divergence from the baseline, in nats."""
    memory: float | None
    """MiB of whole engines: on the card, or else of the process."""

    def beats(self, other: Point) -> bool:
        """Whether it is worse in nothing and better in something; memory counts where both have it."""
        pairs = [(self.time, other.time), (self.error, other.error)]
        if self.memory is not None and other.memory is not None:
            pairs.append((self.memory, other.memory))
        return all(mine <= theirs for mine, theirs in pairs) and any(mine < theirs for mine, theirs in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbReport:
    """A run."""

    level: str
    """``"kernel"`` or ``"engine"``."""
    command: str
    machine: Machine
    seconds: float
    rounds: int
    arms: tuple[ArmReport, ...]
    """The baseline first."""
    lines: tuple[Line, ...]
    comparisons: tuple[Comparison, ...]
    """In the order of the other arms."""
    numerics: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Arm → measures of how far its outputs are from the baseline's (engine level)."""
    clocks: tuple[int | None, int | None] = (None, None)
    """MHz of the card before and after; None where there is no card, or nothing that tells."""
    notes: tuple[str, ...] = ()
    """What lessens the trust in the numbers: other load, drift, rounds that were left out."""
    interrupted: bool = False
    """The user ended it: lines are missing."""

    @property
    def baseline(self) -> str:
        return self.arms[0].label

    @property
    def wrong(self) -> tuple[str, ...]:
        """Arms that are wrong or have failed, the baseline too."""
        own = [arm.label for arm in self.arms if arm.problems]
        return tuple(dict.fromkeys([*own, *(c.arm for c in self.comparisons if c.verdict in ("wrong", "failed"))]))

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Arms that nothing is known of: no line has an output of theirs."""
        return tuple(a.label for a in self.arms if not any(a.label in line.values for line in self.lines))

    @property
    def best(self) -> Comparison:
        """The other arm that is fastest by estimate; a wrong one only where all are."""
        return max(self.comparisons, key=lambda c: c.ratio.estimate if c.ratio else -1.0)

    def slower_than(self, share: float) -> list[str]:
        """Arms shown to be slower than `share` times the baseline, and those of which nothing can be shown."""
        return [c.arm for c in self.comparisons if c.ratio is None or c.ratio.high < share]

    def pareto(self) -> list[str]:
        """Arms that no other one beats in time, error and memory together."""
        points = self.points()
        return [label for label, own in points.items() if not any(other.beats(own) for other in points.values())]

    def points(self) -> dict[str, Point]:
        """Where the right arms stand."""
        found: dict[str, Point] = {}
        ratios = {self.baseline: 1.0, **{c.arm: 1 / c.ratio.estimate for c in self.comparisons if c.ratio}}
        for label, time in ratios.items():
            if label not in self.wrong:
                errors = [line.errors[label] for line in self.lines if label in line.errors]
                errors += [value for name, value in self.numerics.get(label, {}).items() if name.startswith("mean KL")]
                memory = {line.metric: line.values[label] for line in self.lines if label in line.values}
                most = next((memory[metric] for metric in MEMORY if metric in memory), None)
                found[label] = Point(time=time, error=max(errors, default=0.0), memory=most)
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON document. `verdict` is that of the best other arm: with two arms, of the second. An end that an
        interval does not have is null."""
        return _finite(self._document())

    def _document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": self.best.verdict,
            "ratio": asdict(self.best.ratio) if self.best.ratio else None,
            "arm": self.best.arm,
            "baseline": self.baseline,
            "level": self.level,
            "command": self.command,
            "machine": self.machine.to_dict(),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "arms": [asdict(arm) for arm in self.arms],
            "comparisons": [asdict(c) for c in self.comparisons],
            "lines": [
                {**asdict(line), "verdicts": {arm: ratio.word for arm, ratio in line.ratios.items()}}
                for line in self.lines
            ],
            "numerics": {arm: dict(values) for arm, values in self.numerics.items()},
            "points": {arm: asdict(point) for arm, point in self.points().items()},
            "pareto": self.pareto(),
            "clocks": list(self.clocks),
            "notes": list(self.notes),
            "interrupted": self.interrupted,
        }


def read_report(document: Mapping[str, Any]) -> AbReport:
    """What `AbReport.to_dict` wrote, on this machine or another. Raises `msgspec.ValidationError` for another shape."""
    return msgspec.convert(_endless(document), AbReport)


def _endless(value: Any) -> Any:
    """Ends that an interval does not have are infinite again."""
    if isinstance(value, Mapping):
        found = {key: _endless(one) for key, one in value.items()}
        return {**found, "high": inf} if "estimate" in found and found.get("high") is None else found
    return [_endless(one) for one in value] if isinstance(value, list | tuple) else value


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
