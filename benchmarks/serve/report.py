"""What was measured, as a value, a JSON document and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.metrics import LATENCIES, METRICS, PERCENTILES, Timeline, metrics_of
from ..machine import Machine
from .client import Outcome
from .goodput import goodput

SCHEMA = "headstock.bench.serve/1"
"""Name and version of the JSON documents; new fields may come under the same version."""
TITLES = {
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "total_token_throughput": "all tokens/s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run."""

    command: str
    base_url: str
    model: str
    chat: bool
    workload: str
    arrivals: str
    max_concurrency: int | None
    elapsed: float
    """Seconds from the start to the last token."""
    outcomes: tuple[Outcome, ...]
    promises: Mapping[str, float]
    """Milliseconds by latency, for the goodput."""
    client: Machine
    """Where the load came from; the server may be elsewhere."""

    @property
    def timelines(self) -> list[Timeline]:
        """Of the requests that were answered."""
        return [outcome.timeline for outcome in self.outcomes if outcome.timeline is not None]

    @property
    def errors(self) -> dict[str, int]:
        """What went wrong, and how often."""
        return dict(Counter(outcome.error for outcome in self.outcomes if outcome.error).most_common())

    @property
    def metrics(self) -> dict[str, float]:
        """In the units of `METRICS`; empty where nothing was answered."""
        timelines = self.timelines
        return metrics_of(timelines, self.elapsed) if timelines else {}

    @property
    def goodput(self) -> float | None:
        """Requests a second that kept the promises; None without any."""
        return goodput(self.timelines, self.promises, self.elapsed) if self.promises else None

    @property
    def peak(self) -> int:
        """Most requests under way at a time."""
        spans = [(o.sent, o.ended) for o in self.outcomes if o.ended is not None]
        steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        level = highest = 0
        for _, step in steps:
            level += step
            highest = max(highest, level)
        return highest

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "base_url": self.base_url,
            "model": self.model,
            "chat": self.chat,
            "workload": self.workload,
            "arrivals": self.arrivals,
            "max_concurrency": self.max_concurrency,
            "elapsed_seconds": self.elapsed,
            "num_requests": len(self.outcomes),
            "num_answered": len(self.timelines),
            "num_prompt_tokens": sum(t.num_prompt_tokens for t in self.timelines),
            "num_output_tokens": sum(t.count for t in self.timelines),
            "num_cached_tokens": sum(o.num_cached_tokens for o in self.outcomes),
            "peak_concurrency": self.peak,
            "metrics": {name: {"unit": METRICS[name].unit, "value": v} for name, v in self.metrics.items()},
            "goodput": None if self.goodput is None else {"promises_ms": dict(self.promises), "value": self.goodput},
            "errors": self.errors,
            "requests": [_request(outcome) for outcome in self.outcomes],
            "client": self.client.to_dict(),
        }


def _request(outcome: Outcome) -> dict[str, Any]:
    timeline = outcome.timeline
    return {
        "sent": outcome.sent,
        "times": None if timeline is None else list(timeline.token_times),
        "num_prompt_tokens": None if timeline is None else timeline.num_prompt_tokens,
        "num_output_tokens": None if timeline is None else timeline.count,
        "error": outcome.error,
    }


def heading(report: Report) -> list[str]:
    """What was asked of whom."""
    limit = f", at most {report.max_concurrency} at a time" if report.max_concurrency else ""
    kind = "chats" if report.chat else "completions"
    return [
        f"{report.model} at {report.base_url}, {kind}",
        f"workload: {report.workload}; {report.arrivals}{limit}",
        f"{len(report.timelines)} of {len(report.outcomes)} requests answered in {report.elapsed:.2f} s, "
        f"up to {report.peak} at a time",
    ]


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headings and lines."""
    found = report.metrics
    rows = [[title, _number(found[name]), *[""] * (len(PERCENTILES) - 1)] for name, title in TITLES.items() if found]
    if report.goodput is not None:
        promises = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in report.promises.items())
        rows.append([f"goodput, requests/s ({promises})", _number(report.goodput), *[""] * (len(PERCENTILES) - 1)])
    for name in LATENCIES:
        if f"{name}_median" in found:
            rows.append([f"{name.upper()} ms", *(_number(found[f"{name}_{point}"]) for point in PERCENTILES)])
    return ["", *PERCENTILES], rows


def remarks(report: Report) -> list[str]:
    """What went wrong."""
    return [f"{count} FAILED: {error}" for error, count in report.errors.items()]


def markdown(report: Report) -> str:
    """The same for a page."""
    columns, rows = table(report)
    lines = [f"`{report.command}`", "", *(f"- {line}" for line in (*heading(report), *remarks(report))), ""]
    lines += [_row(columns), _row(["---"] * len(columns)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
