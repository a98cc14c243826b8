"""`ThreadCarrier`: an engine in this process, in a thread of its own."""

from __future__ import annotations

import threading

from ...errors import EngineDeadError
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
        self._thread.join()
        self.desk.end(EngineDeadError("the engine has been closed"))
        self._core.close()
