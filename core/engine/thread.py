"""`ThreadPort`: an engine in this process, in a thread of its own."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from typing import Any

from ..errors import EngineDeadError
from ..scheduler.output import EngineRequest
from .calls import Calls
from .core import EngineCore
from .info import EngineInfo
from .loop import EngineLoop
from .messages import Abort, Add, Call, Died, Event, Method, News, Reply
from .port import Listener


class ThreadPort:
    """An `EnginePort` to a core that is handed over: nobody else may touch it from then on."""

    def __init__(self, core: EngineCore) -> None:
        self.info: EngineInfo = core.info
        self._desk = _Desk()
        self._loop = EngineLoop(core, self._desk.take)
        thread = threading.Thread(target=self._loop.run, name="headstock-engine", daemon=True)
        thread.start()
        # At the interpreter's end as well: a thread inside torch must not outlive it.
        self._close = weakref.finalize(self, _close, self._loop, thread, self._desk, core)

    @property
    def dead(self) -> EngineDeadError | None:
        return self._desk.dead

    def listen(self, listener: Listener) -> None:
        self._desk.listen(listener)

    def add(self, request: EngineRequest) -> None:
        self._loop.send(Add(request=request))

    def abort(self, request_ids: tuple[str, ...]) -> None:
        self._loop.send(Abort(request_ids=request_ids))

    def call(self, method: Method, *args: Any) -> Future[Any]:
        number, future = self._desk.calls.open()
        if not future.done():
            self._loop.send(Call(number=number, method=method, args=args))
        return future

    def close(self) -> None:
        self._close()


class _Desk:
    """Where the loop's events arrive and are handed on."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.dead: EngineDeadError | None = None
        self._listener: Listener | None = None
        self._lock = threading.Lock()

    def listen(self, listener: Listener) -> None:
        with self._lock:
            self._listener = listener
            dead = self.dead
        if dead is not None:
            listener(dead)

    def take(self, event: Event) -> None:
        match event:
            case News(outputs=outputs):
                if self._listener is not None:
                    self._listener(outputs)
            case Reply():
                self.calls.settle(event)
            case Died(reason=reason, traceback=traceback):
                self.end(EngineDeadError(f"the engine has died: {reason}", details=traceback))

    def end(self, error: EngineDeadError) -> None:
        """Nothing comes any more: tell everybody who waits, once."""
        with self._lock:
            if self.dead is not None:
                return
            self.dead = error
            listener = self._listener
        self.calls.fail(error)
        if listener is not None:
            listener(error)


def _close(loop: EngineLoop, thread: threading.Thread, desk: _Desk, core: EngineCore) -> None:
    loop.stop()
    thread.join()
    desk.end(EngineDeadError("the engine has been closed"))
    core.close()
