"""`ThreadPort`: an engine in this process, in a thread of its own."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from typing import Any

from ...errors import EngineDeadError
from ...scheduler.output import EngineRequest
from ..core import EngineCore
from ..info import EngineInfo
from .desk import Desk
from .loop import EngineLoop
from .messages import Abort, Add, Call, Method
from .port import Listener


class ThreadPort:
    """An `EnginePort` to a core that is handed over: nobody else may touch it from then on."""

    def __init__(self, core: EngineCore) -> None:
        self.info: EngineInfo = core.info
        self._desk = Desk()
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

    def ask(self, request: EngineRequest) -> Future[None]:
        number, future = self._desk.open_call()
        self._loop.send(Add(request=request, number=number))
        return future

    def abort(self, request_ids: tuple[str, ...]) -> None:
        self._loop.send(Abort(request_ids=request_ids))

    def call(self, method: Method, *args: Any) -> Future[Any]:
        number, future = self._desk.open_call()
        self._loop.send(Call(number=number, method=method, args=args))
        return future

    def close(self) -> None:
        self._close()


def _close(loop: EngineLoop, thread: threading.Thread, desk: Desk, core: EngineCore) -> None:
    loop.stop()
    thread.join()
    desk.end(EngineDeadError("the engine has been closed"))
    core.close()
