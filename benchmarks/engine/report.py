"""What was measured, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..machine import Machine
from ..statistics import Interval, spread
from .metrics import METRICS

SCHEMA = "headstock.bench.{}/1"
"""Name and version of the JSON documents; new fields may come under the same version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one arm over the rounds that count."""

    unit: str
    median: float
    spread: float
    """Interquartile range over the median."""
    samples: tuple[float, ...]
    """One a round, in order."""

    @classmethod
    def of(cls, metric: str, samples: tuple[float, ...]) -> Series:
        return cls(unit=METRICS[metric].unit, median=median(samples), spread=spread(samples), samples=samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One engine."""

    name: str
    """As it was asked for."""
    failure: str = ""
    """Why it has no numbers: it failed, or gave other than it was asked for."""
    attention: tuple[str, ...] = ()
    """Which backend served which layers, and why, a line each."""
    package: str = ""
    """Of the backend, with version; empty where there are several."""
    source_hash: str = ""
    """Of the backend's source files."""
    block_size: int | None = None
    layout: str | None = None
    num_blocks: int | None = None
    """Of the KV cache."""
    load_seconds: float | None = None
    """Weights, kernels that are built, KV cache."""
    warm_seconds: tuple[float, ...] = ()
    """Of the turns before those that count."""
    metrics: Mapping[str, Series] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that a turn found in the prefix cache, which it begins empty: prompts share them."""
    num_preemptions: int = 0
    """In a turn."""
    agreement: float | None = None
    """Share of the first arm's tokens up to where each answer first differs; None for the first itself."""
    ratio: Interval | None = None
    """How many times as fast as the first arm, by time in the same rounds; None for the first itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run."""

    kind: str
    """``"throughput"`` or ``"latency"``."""
    machine: Machine
    command: str
    model: str
    dtype: str
    device: str
    threads: int
    """Of torch, on a CPU."""
    workload: str
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    rounds: int
    disturbed: int
    """Rounds in which others kept the CPUs busy; left out unless too few would remain."""
    kept_disturbed: bool
    """Whether too few would have remained, so that all count: measure again on a quiet machine."""
    other_load: float | None
    """CPUs that others kept busy, on average."""
    load_before: float | None
    load_after: float | None
    """Load average of the last minute."""
    seconds: float
    arms: tuple[ArmResult, ...]

    @property
    def failures(self) -> list[str]:
        return [f"{arm.name}: {arm.failure}" for arm in self.arms if arm.failure]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": SCHEMA.format(self.kind), **asdict(self), "machine": self.machine.to_dict()}
