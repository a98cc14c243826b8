"""How long a call takes: by a card's own events, or by the host's clock where there is no card."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch


def seconds_of(call: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Of one call. On a card the host waits for its end, so that calls do not queue up behind each other."""
    device = torch.device(device)
    if device.type != "cuda":
        started = perf_counter()
        call()
        return perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1e3
