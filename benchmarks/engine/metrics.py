"""What the times of tokens say. The definitions are those of vLLM's `bench serve`, so that numbers can be compared.

- **TTFT**, time to first token: from a request's arrival to its first token. Offline all requests arrive at the start,
  so waiting in the queue is in it.
- **E2EL**, end-to-end latency: from a request's arrival to its last token.
- **TPOT**, time per output token: (E2EL - TTFT) / (tokens - 1), one number a request; none where it has a single token.
- **ITL**, inter-token latency: every gap between one token of a request and the next, those of all requests together.
- **Throughput**: requests, output tokens, and prompt and output tokens, each over the time from the start to the last
  token.

Percentiles interpolate linearly between the two nearest values, as numpy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

PERCENTILES = {"median": 50.0, "p90": 90.0, "p99": 99.0}
LATENCIES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a number is."""

    unit: str
    better: Literal["higher", "lower"]


METRICS: dict[str, Metric] = {
    "output_throughput": Metric(unit="tokens/s", better="higher"),
    "total_token_throughput": Metric(unit="tokens/s", better="higher"),
    "request_throughput": Metric(unit="requests/s", better="higher"),
    **{f"{name}_{point}": Metric(unit="ms", better="lower") for name in LATENCIES for point in PERCENTILES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One request: how many tokens its prompt had, and when its own came."""

    num_prompt_tokens: int
    token_times: tuple[float, ...]
    """Seconds after its arrival, one an output token; several that one step gave have the same. Of a stream, one a
    piece of it that brings text, as vLLM takes them."""
    num_tokens: int | None = None
    """Output tokens, where they are not as many as times."""

    @property
    def count(self) -> int:
        """Output tokens."""
        return len(self.token_times) if self.num_tokens is None else self.num_tokens

    @property
    def ttft(self) -> float:
        return self.token_times[0]

    @property
    def e2el(self) -> float:
        return self.token_times[-1]

    @property
    def tpot(self) -> float | None:
        """None for a single token."""
        count = self.count
        return (self.e2el - self.ttft) / (count - 1) if count > 1 else None

    @property
    def itl(self) -> tuple[float, ...]:
        """Gaps between successive tokens."""
        return tuple(np.diff(self.token_times).tolist())


def metrics_of(timelines: Sequence[Timeline], elapsed: float) -> dict[str, float]:
    """Each of `METRICS` that the requests allow, in its unit. `elapsed`: seconds from the start to the last token."""
    output = sum(timeline.count for timeline in timelines)
    prompts = sum(timeline.num_prompt_tokens for timeline in timelines)
    found = {
        "output_throughput": output / elapsed,
        "total_token_throughput": (prompts + output) / elapsed,
        "request_throughput": len(timelines) / elapsed,
    }
    values = {
        "ttft": [timeline.ttft for timeline in timelines],
        "tpot": [tpot for timeline in timelines if (tpot := timeline.tpot) is not None],
        "itl": [gap for timeline in timelines for gap in timeline.itl],
        "e2el": [timeline.e2el for timeline in timelines],
    }
    for name in LATENCIES:
        if values[name]:
            points = np.percentile(values[name], list(PERCENTILES.values())) * 1e3
            found |= {f"{name}_{point}": value for point, value in zip(PERCENTILES, points.tolist(), strict=True)}
    return found
