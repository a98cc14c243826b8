"""`Gathered`: the comparisons of many machines, each with its own verdict; nothing is computed across them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from .cluster import Outcome
from .report import AbReport, read_report

SCHEMA = "headstock.ab.ray/1"
"""Name and version of the JSON document; new fields may come under the same version."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What came home."""

    command: str
    baseline: str
    outcomes: tuple[Outcome, ...]
    """In the order in which they came."""

    @cached_property
    def reports(self) -> tuple[AbReport, ...]:
        """Those that there are, in the same order."""
        return tuple(read_report(outcome.document) for outcome in self.outcomes if outcome.document is not None)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.document is None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document. `verdict` is that of the candidate that was best beside the baseline of its machine."""
        best = max((r.best for r in self.reports), key=lambda c: c.ratio.estimate if c.ratio else -1.0, default=None)
        return {
            "schema": SCHEMA,
            "verdict": best.verdict if best else "not compared",
            "arm": best.arm if best else None,
            "baseline": self.baseline,
            "command": self.command,
            "comparisons": [asdict(outcome) for outcome in self.outcomes],
        }
