"""`Run` and `Measurement`: the form in which results of every kind are kept, so that they stand in one table."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

Better = Literal["lower", "higher"]
MACHINE_KEYS = ("cpu", "gpu", "arch", "cpus", "memory_bytes")
"""What makes two machines the same one for a comparison over time; versions may change on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number about one subject."""

    subject: str
    """Who was measured: a backend, an arm or an engine."""
    workload: str
    """On what: ``decode:9/3/64:1x1k float32 1 thread``. Numbers are compared where this and `metric` are equal."""
    metric: str
    """``time``, ``ttft_median``, ``output_throughput``…"""
    unit: str
    """``us``, ``ms``, ``tokens/s``…"""
    value: float
    better: Better
    samples: tuple[float, ...] = ()
    """In `unit`, where more than one was kept; `value` is their median."""
    right: bool | None = None
    """Whether the output was checked and found right; None: not checked."""
    package: str = ""
    """Distribution and version of the subject."""
    source_hash: str = ""
    """Of the subject's source files: it changes where the version does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Measurements that were made together."""

    id: str
    """Of the content: what is imported twice is kept once."""
    kind: str
    """``kernels``, ``check``, ``ab``, ``serve``, ``throughput``, ``latency``…"""
    source: str
    """Whose benchmark: ``headstock``, ``vllm`` or ``sglang``."""
    when: str
    """UTC, ISO 8601."""
    command: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As the benchmark described it; empty where it did not."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Package → version."""
    measurements: tuple[Measurement, ...] = ()

    @classmethod
    def of(cls, **fields: Any) -> Run:
        """A run whose `id` follows from its content."""
        blank = cls(id="", **fields)
        return cls(id=_digest(asdict(blank)), **fields)

    @classmethod
    def undated(cls, document: Mapping[str, Any], **fields: Any) -> Run:
        """A run whose `document` does not say when: now, and the `id` follows from the document."""
        return cls(id=_digest(document), when=now(), **fields)

    @property
    def machine_id(self) -> str:
        """The same for runs on the same machine; empty where it is not known."""
        known = {key: self.machine[key] for key in MACHINE_KEYS if self.machine.get(key)}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:8] if known else ""

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(m.subject for m in self.measurements))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """Raises `ValueError` for another shape, a date that is none, and numbers that are not finite."""
        run = msgspec.convert(values, cls)
        numbers = [x for m in run.measurements for x in (m.value, *m.samples)]
        if not all(map(math.isfinite, numbers)):
            raise ValueError("a number is not finite")
        when = datetime.fromisoformat(run.when).astimezone(UTC)  # runs are sorted by the text
        return replace(run, when=when.isoformat(timespec="seconds"))


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
