"""Goodput: requests a second that kept what was promised (DistServe, Zhong et al. 2024), counted as vLLM does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ...core.errors import InvalidInput
from ..engine.metrics import Timeline

PROMISES = ("ttft", "tpot", "e2el")
"""Latencies of a request that can be promised."""


def read_promises(words: Iterable[str]) -> dict[str, float]:
    """Milliseconds by latency, from ``ttft:500``. Raises `InvalidInput`."""
    promises: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if name not in PROMISES or not limit > 0:
            known = ", ".join(PROMISES)
            raise InvalidInput("goodput", f"{word!r} is not a latency ({known}), a colon and milliseconds above 0")
        promises[name] = limit
    return promises


def keeps(timeline: Timeline, promises: Mapping[str, float]) -> bool:
    """Whether a request met all of them. One without a second token has a time per output token of 0, as in vLLM."""
    found = {"ttft": timeline.ttft, "tpot": timeline.tpot or 0.0, "e2el": timeline.e2el}
    return all(found[name] * 1e3 <= limit for name, limit in promises.items())


def goodput(timelines: Sequence[Timeline], promises: Mapping[str, float], elapsed: float) -> float:
    """Requests a second that met all."""
    return sum(keeps(timeline, promises) for timeline in timelines) / elapsed
