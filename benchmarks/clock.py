"""How long a call takes: by a card's own events, or by the host's clock where there is no card. Never run on a card."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import torch

from ..core.attention import Device
from ..plugins import Failure, Guard

CARDS = ("cuda", "xpu")
"""Kinds of device, by torch's names, that have events."""
FLUSHED_BYTES = 512 * 2**20
"""Written before every timed call on a card: twice the largest cache that one has (256 MB, an MI300X)."""


def seconds_of(call: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Of one call.

    On a card it finds nothing of earlier calls in the caches, as in an engine, where other layers lie between two calls
    of one; what empties them also gives the host a start, so that a launch is not in the time (as in
    `triton.testing.do_bench`). The host waits for the end, so that calls do not queue up behind each other.
    """
    device = torch.device(device)
    if device.type not in CARDS:
        started = perf_counter()
        call()
        return perf_counter() - started
    card: Any = torch.xpu if device.type == "xpu" else torch.cuda
    with card.device(device):
        begin, end = (card.Event(enable_timing=True) for _ in range(2))
        _scratch(device).zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
    return begin.elapsed_time(end) / 1e3


def clock_rate(device: Device, guard: Guard) -> int | None:
    """MHz at which a card runs just now; None on CPUs, and where nothing is installed that tells (nvidia-ml-py, or
    amdsmi)."""
    if device.platform not in ("cuda", "rocm"):
        return None
    found = guard.attempt(lambda: torch.cuda.clock_rate(device.index))
    return None if isinstance(found, Failure) else int(found)


@cache
def _scratch(device: torch.device) -> torch.Tensor:
    return torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)
