"""`RestartingPort`: an engine that is started again when it dies."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ...errors import EngineClosedError, EngineDeadError, HeadstockError
from ...scheduler.output import EngineCoreOutput, EngineRequest
from ..info import EngineInfo
from .messages import Method
from .port import EnginePort, Listener, Tidings, weakly

logger = logging.getLogger(__name__)

MOST = 3
"""Deaths within `WINDOW` after which it stays dead: something is wrong that starting again does not cure."""
WINDOW = 600.0
"""Seconds."""


class RestartingPort:
    """An `EnginePort`. Requests of an engine that died end with an error; while it starts again, it counts as dead."""

    def __init__(self, make: Callable[[], EnginePort]) -> None:
        """`make` starts an engine; it is called again after each death, from a thread of its own."""
        self._make = make
        self._port = make()
        self.info: EngineInfo = self._port.info
        self._lock = threading.Lock()
        self._live: set[str] = set()
        self._deaths: deque[float] = deque(maxlen=MOST)
        self._dead: EngineDeadError | None = None
        self._closed = False
        self._listener: Listener | None = None
        self._reviving: threading.Thread | None = None

    @property
    def dead(self) -> EngineDeadError | None:
        if self._dead is not None or (dead := self._port.dead) is None:
            return self._dead
        return dead if self._closed else _restarting(dead)  # its tidings are on their way

    def listen(self, listener: Listener) -> None:
        self._listener = listener
        self._port.listen(weakly(self._hear))

    def add(self, request: EngineRequest) -> None:
        self._enter(request)
        self._port.add(request)

    def ask(self, request: EngineRequest) -> Future[None]:
        self._enter(request)
        answer: Future[None] = Future()
        self._port.ask(request).add_done_callback(lambda done: self._answered(request, done, answer))
        return answer

    def abort(self, request_ids: tuple[str, ...]) -> None:
        with self._lock:
            self._live.difference_update(request_ids)
        self._port.abort(request_ids)

    def call(self, method: Method, *args: Any) -> Future[Any]:
        return self._port.call(method, *args)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._port.close()
        if self._reviving is not None:
            self._reviving.join()
            self._port.close()

    def _enter(self, request: EngineRequest) -> None:
        with self._lock:
            if self._dead is not None:
                raise self._dead.fresh()
            self._live.add(request.request_id)

    def _answered(self, request: EngineRequest, done: Future[None], answer: Future[None]) -> None:
        error = done.exception()
        wanted = answer.set_running_or_notify_cancel()
        if error is not None or not wanted:
            with self._lock:
                self._live.discard(request.request_id)
        if not wanted:
            return
        if isinstance(error, EngineDeadError) and not self._closed:
            error = _restarting(error)
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    def _hear(self, tidings: Tidings) -> None:
        """In a thread of the port's."""
        assert self._listener is not None
        if not isinstance(tidings, EngineDeadError):
            with self._lock:
                self._live.difference_update(o.request_id for o in tidings if o.finish_reason is not None)
            self._listener(tidings)
            return
        with self._lock:
            final = self._closed or isinstance(tidings, EngineClosedError) or self._dies_too_often()
            self._dead = tidings
            if not final:
                self._dead = _restarting(tidings)
            lost, self._live = sorted(self._live), set()
        if final:
            self._listener(tidings)
            return
        logger.error("%s; it is started again, and %d requests end", tidings.reason, len(lost))
        error = f"{tidings.reason}; send the request again"
        if lost:
            self._listener([EngineCoreOutput(request_id=i, finish_reason="error", error=error) for i in lost])
        self._reviving = threading.Thread(target=self._revive, name="headstock-engine-restart", daemon=True)
        self._reviving.start()

    def _dies_too_often(self) -> bool:
        now = time.monotonic()
        often = len(self._deaths) == MOST and now - self._deaths[0] < WINDOW
        self._deaths.append(now)
        return often

    def _revive(self) -> None:
        assert self._listener is not None
        self._port.close()
        try:
            port = self._make()
        except HeadstockError as error:
            self._dead = EngineDeadError(f"the engine died and could not be started again: {error}")
            self._listener(self._dead)
            return
        with self._lock:
            self._port, closed = port, self._closed
            if not closed:
                self._dead = None
        port.listen(weakly(self._hear))


def _restarting(dead: EngineDeadError) -> EngineDeadError:
    return EngineDeadError(f"{dead.reason}; it is being started again", details=dead.details, restarting=True)
