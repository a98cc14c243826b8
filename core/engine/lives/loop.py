"""`EngineLoop`: one `EngineCore` kept busy. It is the same loop in a thread, in a child process and in a Ray actor."""

from __future__ import annotations

import logging
import queue
import time
import traceback
from collections.abc import Callable

from ...errors import HeadstockError
from ...scheduler.output import EngineCoreOutput
from ..core import EngineCore
from .messages import Abort, Add, Call, Command, Died, Event, News, Reply

logger = logging.getLogger(__name__)


class EngineLoop:
    """Obeys commands between steps and tells of events. `send` and `stop` may be called from any thread.

    `tell` is called from the thread of `run`.
    """

    def __init__(self, core: EngineCore, tell: Callable[[Event], None]) -> None:
        self._core = core
        self._tell = tell
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._pausing: list[int] = []
        """Numbers of calls that are answered once there is nothing left to compute."""
        self._stopped = False
        self.step_started: float | None = None
        """`time.monotonic()` at the start of the running step; None between steps."""
        self.longest_step = 0.0
        """Seconds; what a step may be expected to take at most."""

    def send(self, command: Command) -> None:
        """Have `command` obeyed after the running step."""
        self._commands.put(command)

    def stop(self) -> None:
        """Let `run` return after the running step; requests are left as they are."""
        self._commands.put(None)

    def run(self) -> bool:
        """True after `stop`; False where something was raised that the engine cannot go on after: `Died` is told."""
        try:
            while not self._stopped:
                self._obey_all()
                if self._core.can_step and not self._stopped:
                    self._step()
        except BaseException as error:
            logger.error("the engine ends: %s: %s", type(error).__name__, error)
            self._tell(Died(reason=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()))
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def _step(self) -> None:
        self.step_started = started = time.monotonic()
        outputs = self._core.step()
        self.longest_step = max(self.longest_step, time.monotonic() - started)
        self.step_started = None
        if outputs:
            self._tell(News(outputs=outputs))
        if self._pausing and not self._core.can_step:
            self._settle_pauses()

    def _obey_all(self) -> None:
        """Every command that has come; waits for one where there is nothing to compute."""
        wait = not self._core.can_step
        while not self._stopped:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if command is None:
                self._stopped = True
            else:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Add():
                self._add(command)
            case Abort(request_ids=request_ids):
                self._core.abort_requests(request_ids)
            case Call():
                self._call(command)

    def _add(self, add: Add) -> None:
        error: HeadstockError | None = None
        try:
            self._core.add_request(add.request)
        except HeadstockError as refusal:
            error = refusal
        if add.number is not None:
            self._tell(Reply(number=add.number, error=error))
        elif error is not None:
            last = EngineCoreOutput(request_id=add.request.request_id, finish_reason="error", error=str(error))
            self._tell(News(outputs=[last]))

    def _call(self, call: Call) -> None:
        try:
            value = getattr(self._core, call.method)(*call.args)
        except Exception as error:
            self._tell(Reply(number=call.number, error=error))
            return
        if call.method == "pause" and self._core.can_step:
            self._pausing.append(call.number)
            return
        self._tell(Reply(number=call.number, value=value))
        if call.method in ("resume", "pause"):
            self._settle_pauses()

    def _settle_pauses(self) -> None:
        """Answer the calls of `pause` that wait: all is quiet, or another pause or the end of it went before."""
        for number in self._pausing:
            self._tell(Reply(number=number))
        self._pausing.clear()
