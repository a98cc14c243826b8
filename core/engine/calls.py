"""Calls that wait for their answers."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from ..errors import EngineDeadError
from .messages import Reply


class Calls:
    """Futures by number. Thread-safe. Once failed, every new call fails as well."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Future[Any]] = {}
        self._next = 0
        self._dead: EngineDeadError | None = None

    def open(self) -> tuple[int, Future[Any]]:
        """A number and its future, which has ended already where nobody can answer."""
        future: Future[Any] = Future()
        with self._lock:
            self._next += 1
            number, dead = self._next, self._dead
            if dead is None:
                self._open[number] = future
        if dead is not None:
            future.set_exception(dead)
        return number, future

    def settle(self, reply: Reply) -> None:
        """Hand an answer to whoever waits for it."""
        with self._lock:
            future = self._open.pop(reply.number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            future.set_result(reply.value)

    def fail(self, error: EngineDeadError) -> None:
        """End all calls, and those that come."""
        with self._lock:
            self._dead = error
            futures, self._open = list(self._open.values()), {}
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
