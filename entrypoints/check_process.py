"""Checking a backend in a process of its own, and in the next one where that ends before its time."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from ..core.errors import BackendError, HeadstockError
from .check_worker import Message
from .checking import Order

MOST_DEATHS = 10
"""Processes that a backend may end before the rest of its cases is given up."""
DEATHS_OF_ONE = 3
"""Processes that may end in cases of one convention before the rest of those is given up."""
START_SECONDS = 300.0
"""Time until the first case, and for that one: libraries load, kernels may compile."""
PROGRAM = "import sys; sys.path[:] = {path!r}; from headstock.entrypoints.check_worker import main; main()"


def messages(order: Order, timeout: float) -> Iterator[Message]:
    """What `check_worker` tells, over as many processes as it takes.

    A case during which a process dies, or that takes longer than `timeout` seconds, has ended as failed. The last
    message is ``finished``, with the number of cases that were given up as ``unrun``. Raises what the backend was
    refused for.
    """
    done: set[str] = set()
    deaths: Counter[str] = Counter()
    total = 0
    for life in range(MOST_DEATHS + 1):
        finished = False
        tried = {"done": sorted(done), "given_up": [name for name, n in deaths.items() if n >= DEATHS_OF_ONE]}
        for message in _one_life(order, tried, timeout):
            match message["event"]:
                case "refused":
                    raise HeadstockError(message["reason"])
                case "prepared" if life > 0:
                    continue
                case "prepared":
                    total = message["cases"]
                case "ended":
                    done.add(message["outcome"]["case"])
                    if message.get("died"):
                        deaths[message["outcome"]["convention"]] += 1
                case "finished":
                    finished = True
                    continue
                case _:
                    pass
            yield message
        if finished:
            break
    yield {"event": "finished", "unrun": max(0, total - len(done))}


def _one_life(order: Order, tried: Message, timeout: float) -> Iterator[Message]:
    """The messages of one process, and a failed outcome for the case in which it ended."""
    program = PROGRAM.format(path=[entry or os.getcwd() for entry in sys.path])
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"order": asdict(order), **tried}).encode())
        process.stdin.close()
        running: Message | None = None
        ended = False
        lines = _Lines(process.stdout.fileno())
        patience, begun = START_SECONDS, time.monotonic()
        while (line := lines.read(patience)) is not None:
            message = json.loads(line)
            running = {"started": message, "ended": None}.get(message["event"], running)
            if message["event"] == "ended":
                patience = timeout
            ended = message["event"] in ("finished", "refused")
            yield message
            begun = time.monotonic()
        if lines.timed_out:
            process.kill()
        problem = f"took longer than {patience:g} seconds" if lines.timed_out else _death(process.wait())
        if running is not None:
            yield _failed(running, problem, time.monotonic() - begun)
        elif not ended and not tried["done"]:
            raise BackendError(f'backend "{order.backend}": the process {problem} before the first case')
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _failed(started: Message, problem: str, seconds: float) -> Message:
    """The outcome of a case that ended its process."""
    return {
        "event": "ended",
        "died": True,
        "outcome": {
            "case": started["case"],
            "convention": started["convention"],
            "status": "failed",
            "reason": f"the process {problem}",
            "problem": started["problem"],
            "seconds": seconds,
        },
    }


def _death(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({signal.Signals(-code).name})"


class _Lines:
    """Lines of a pipe, with patience."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._selector = selectors.DefaultSelector()
        self._selector.register(fd, selectors.EVENT_READ)
        self._held = b""
        self.timed_out = False

    def read(self, seconds: float) -> bytes | None:
        """The next line; None at the end, and where none comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._held:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                self.timed_out = True
                return None
            piece = os.read(self._fd, 65536)
            if not piece:
                return None
            self._held += piece
        line, _, self._held = self._held.partition(b"\n")
        return line
