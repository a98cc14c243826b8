"""`ThreadCarrier`: an engine in this process, in a thread of its own."""

from __future__ import annotations

import threading

from ...errors import EngineClosedError
from ..core import EngineCore
from ..info import EngineInfo
from .desk import Desk
from .loop import EngineLoop
from .messages import Command


class ThreadCarrier:
    """A `Carrier` to a core that is handed over: nobody else may touch it from then on."""

    def __init__(self, core: EngineCore) -> None:
        self.desk = Desk()
        self._core = core
        self._loop = EngineLoop(core, self.desk.take)
        self._thread = threading.Thread(target=self._loop.run, name="headstock-engine", daemon=True)
        self._thread.start()

    def ready(self) -> EngineInfo:
        return self._core.info

    def send(self, command: Command) -> None:
        self._loop.send(command)

    def close(self) -> None:
        self._loop.stop()
        if self._thread is not threading.current_thread():  # the last to hold the port may be who tells it news
            self._thread.join()
        self.desk.end(EngineClosedError())
        self._core.close()
