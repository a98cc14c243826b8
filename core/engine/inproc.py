"""`InprocClient`: an engine in the caller's process and thread. Nothing runs but when it is called."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import EngineClosedError, HeadstockError
from ..scheduler.output import EngineCoreOutput, EngineRequest
from ..scheduler.stats import SchedulerStats
from .client import PauseMode
from .core import EngineCore
from .info import EngineInfo


class InprocClient:
    """An `EngineClient` that computes in `get_outputs`. What a step raises passes on to the caller."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._closed = False
        self._news: list[EngineCoreOutput] = []
        """Of steps that `pause` computed."""

    @property
    def core(self) -> EngineCore:
        """Raises `EngineClosedError` after `close`."""
        if self._closed:
            raise EngineClosedError
        return self._core

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    def add_request(self, request: EngineRequest) -> None:
        self.core.add_request(request)

    def abort_requests(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        return [] if self._closed else self.core.abort_requests(request_ids)

    def get_outputs(self) -> list[EngineCoreOutput]:
        if self._news:
            news, self._news = self._news, []
            return news
        if not self.core.can_step and self.core.has_unfinished_requests():
            raise HeadstockError("the engine is paused or asleep, so no news can come; resume it or wake it up first")
        return self.core.step()

    def has_unfinished_requests(self) -> bool:
        return bool(self._news) or self.core.has_unfinished_requests()

    def stats(self) -> SchedulerStats:
        return self.core.stats()

    def reset_prefix_cache(self) -> bool:
        return self.core.reset_prefix_cache()

    def pause(self, mode: PauseMode = "abort") -> None:
        self.core.pause(mode)
        while self.core.can_step:
            self._news += self.core.step()

    def resume(self) -> None:
        self.core.resume()

    def sleep(self, level: int = 1) -> None:
        self.core.sleep(level)

    def wake_up(self) -> None:
        self.core.wake_up()

    def close(self) -> None:
        self._core.close()
        self._closed = True
