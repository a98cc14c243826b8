"""`Desk`: where the events of an engine elsewhere arrive and are handed on."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from ...errors import EngineDeadError
from .messages import Died, Event, News, Reply
from .port import Listener


class Desk:
    """Listener and open calls of one port. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._dead: EngineDeadError | None = None
        self._calls: dict[int, Future[Any]] = {}
        self._last = 0

    @property
    def dead(self) -> EngineDeadError | None:
        return self._dead

    def listen(self, listener: Listener) -> None:
        """As `EnginePort.listen`."""
        with self._lock:
            self._listener = listener
            dead = self._dead
        if dead is not None:
            listener(dead)

    def open_call(self) -> tuple[int, Future[Any]]:
        """A number and its future, which has ended already where nobody can answer."""
        future: Future[Any] = Future()
        with self._lock:
            self._last += 1
            number, dead = self._last, self._dead
            if dead is None:
                self._calls[number] = future
        if dead is not None:
            future.set_exception(dead)
        return number, future

    def take(self, event: Event) -> None:
        """Hand an event on to whom it concerns."""
        match event:
            case News(outputs=outputs):
                if self._listener is not None:
                    self._listener(outputs)
            case Reply(number=number, value=value, error=error):
                with self._lock:
                    future = self._calls.pop(number, None)
                if future is not None:
                    _settle([future], value, error)
            case Died(reason=reason, traceback=traceback):
                self.end(EngineDeadError(f"the engine has died: {reason}", details=traceback))

    def end(self, error: EngineDeadError) -> None:
        """Nothing comes any more: tell everybody who waits. Only the first reason counts."""
        with self._lock:
            if self._dead is not None:
                return
            self._dead = error
            listener, futures = self._listener, list(self._calls.values())
            self._calls.clear()
        _settle(futures, None, error)
        if listener is not None:
            listener(error)


def _settle(futures: Iterable[Future[Any]], value: Any, error: Exception | None) -> None:
    for future in futures:
        if not future.set_running_or_notify_cancel():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
