"""Whether others use the CPUs that are being measured."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import psutil

WINDOW_SECONDS = 0.25
"""The system counts CPU time in hundredths of a second: shorter spans tell nothing."""
DISTURBED = 0.15
"""CPUs kept busy by others from which a span counts as disturbed; clock ticks alone can show some 0.05."""


@dataclass(frozen=True, slots=True)
class _Reading:
    clock: float
    busy: float
    """Seconds for which CPUs that we may use were busy, all of them together; time stolen by a hypervisor included."""
    ours: float


class LoadMeter:
    """Tells the CPU time of others from that of this process and `pids`, span by span."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._processes = [psutil.Process(), *(psutil.Process(pid) for pid in pids)]
        self._ours = [0.0] * len(self._processes)
        self._first = self._last = self._read()

    def start(self) -> None:
        """Begin anew."""
        self._first = self._last = self._read()

    def lap(self, *, final: bool = False) -> bool | None:
        """Whether others were busy since the last span ended; None where that is too short to tell.

        The `final` one may be half as long.
        """
        now = self._read()
        elapsed = now.clock - self._last.clock
        if elapsed < (WINDOW_SECONDS / 2 if final else WINDOW_SECONDS):
            return None
        busy = _others(self._last, now) > DISTURBED
        self._last = now
        return busy

    @property
    def average(self) -> float | None:
        """CPUs that others kept busy since `start`; None where that is too short ago."""
        now = self._read()
        return _others(self._first, now) if now.clock - self._first.clock >= WINDOW_SECONDS / 2 else None

    def _read(self) -> _Reading:
        cpus = psutil.cpu_times(percpu=True)
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cpus))
        busy = sum(_busy(cpu) for index, cpu in enumerate(cpus) if index in mine)
        for index, process in enumerate(self._processes):
            with suppress(psutil.NoSuchProcess):  # what it had used before it died stays ours
                times = process.cpu_times()
                self._ours[index] = times.user + times.system
        return _Reading(perf_counter(), busy, sum(self._ours))


def _others(before: _Reading, after: _Reading) -> float:
    busy, ours = after.busy - before.busy, after.ours - before.ours
    return max(0.0, busy - ours) / (after.clock - before.clock)


def _busy(cpu: object) -> float:
    """All but idle; Linux counts guests in user already."""
    return sum(getattr(cpu, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
