"""Clients of an engine that runs on its own, over any port: `RemoteClient` and, for asyncio, `AsyncRemoteClient`."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import EngineDeadError, InvalidInput
from ..scheduler.output import EngineCoreOutput, EngineRequest
from ..scheduler.stats import SchedulerStats
from .client import PauseMode
from .info import EngineInfo
from .lives.messages import Method
from .lives.port import EnginePort, Tidings, weakly


class RemoteClient:
    """An `EngineClient`. An abort takes effect here at once and in the engine after its running step."""

    def __init__(self, port: EnginePort) -> None:
        self._port = port
        self._live: set[str] = set()
        self._tidings: queue.SimpleQueue[Tidings] = queue.SimpleQueue()
        port.listen(self._tidings.put)

    @property
    def info(self) -> EngineInfo:
        return self._port.info

    def add_request(self, request: EngineRequest) -> None:
        _require_alive(self._port)
        if _admissible(request, self.info, self._live):
            self._port.add(request)
        else:
            self._port.ask(request).result()
        self._live.add(request.request_id)

    def abort_requests(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        ids = tuple(i for i in dict.fromkeys(request_ids) if i in self._live)
        self._live.difference_update(ids)
        if ids and self._port.dead is None:
            self._port.abort(ids)
        return [EngineCoreOutput(request_id=i, finish_reason="abort") for i in ids]

    def get_outputs(self) -> list[EngineCoreOutput]:
        while True:
            tidings = self._tidings.get()
            if isinstance(tidings, EngineDeadError):
                self._tidings.put(tidings)  # for the next call
                raise tidings.fresh()
            news = _still_wanted(tidings, self._live)
            if news or not self._live:
                return news

    def has_unfinished_requests(self) -> bool:
        return bool(self._live)

    def stats(self) -> SchedulerStats:
        return self._call("stats")

    def reset_prefix_cache(self) -> bool:
        return self._call("reset_prefix_cache")

    def pause(self, mode: PauseMode = "abort") -> None:
        self._call("pause", mode)

    def resume(self) -> None:
        self._call("resume")

    def sleep(self, level: int = 1) -> None:
        self._call("sleep", level)

    def wake_up(self) -> None:
        self._call("wake_up")

    def close(self) -> None:
        self._port.close()

    def _call(self, method: Method, *args: Any) -> Any:
        return self._port.call(method, *args).result()


class AsyncRemoteClient:
    """An `AsyncEngineClient`. A thousand requests that wait cost what one costs: nothing is polled."""

    def __init__(self, port: EnginePort) -> None:
        self._port = port
        self._live: set[str] = set()
        self._news: list[EngineCoreOutput] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._dead: EngineDeadError | None = None
        """As the port has told: it may count as dead for a while, and start again."""

    @property
    def info(self) -> EngineInfo:
        return self._port.info

    async def add_request(self, request: EngineRequest) -> None:
        self._join()
        _require_alive(self._port)
        request_id = request.request_id
        if _admissible(request, self.info, self._live):
            self._live.add(request_id)
            self._port.add(request)
            return
        self._live.add(request_id)  # before it is sent: its news may come as soon as its answer
        try:
            await asyncio.wrap_future(self._port.ask(request))
        except BaseException:
            await self.abort_requests([request_id])
            raise

    async def abort_requests(self, request_ids: Iterable[str]) -> None:
        ids = tuple(i for i in dict.fromkeys(request_ids) if i in self._live)
        self._live.difference_update(ids)
        if ids and self._port.dead is None:
            self._port.abort(ids)

    async def get_outputs(self) -> list[EngineCoreOutput]:
        self._join()
        while True:
            if self._news:
                news, self._news = _still_wanted(self._news, self._live), []
                if news:
                    return news
            if (dead := self._dead) is not None:
                raise dead.fresh()
            self._arrived.clear()
            await self._arrived.wait()

    def check_health(self) -> None:
        _require_alive(self._port)

    async def stats(self) -> SchedulerStats:
        return await self._call("stats")

    async def reset_prefix_cache(self) -> bool:
        return await self._call("reset_prefix_cache")

    async def pause(self, mode: PauseMode = "abort") -> None:
        await self._call("pause", mode)

    async def resume(self) -> None:
        await self._call("resume")

    async def sleep(self, level: int = 1) -> None:
        await self._call("sleep", level)

    async def wake_up(self) -> None:
        await self._call("wake_up")

    def close(self) -> None:
        self._port.close()

    async def _call(self, method: Method, *args: Any) -> Any:
        return await asyncio.wrap_future(self._port.call(method, *args))

    def _join(self) -> None:
        """Belong to the running loop, from the first call on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._port.listen(weakly(self._hear))

    def _hear(self, tidings: Tidings) -> None:
        """In a thread of the port's."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, tidings)

    def _take(self, tidings: Tidings) -> None:
        if isinstance(tidings, EngineDeadError):
            self._dead = tidings
        else:
            self._news += tidings
        self._arrived.set()


def _require_alive(port: EnginePort) -> None:
    if (dead := port.dead) is not None:
        raise dead.fresh()


def _admissible(request: EngineRequest, info: EngineInfo, live: set[str]) -> bool:
    """Whether the engine is sure to take it; of all others it is asked, so that its own words say what is wrong."""
    if request.request_id in live:  # of several engines another could be asked
        raise InvalidInput("request_id", f"{request.request_id!r} is the id of a request that still runs or waits")
    return 0 < len(request.prompt_token_ids) < info.max_model_len and request.params.n == 1


def _still_wanted(outputs: Sequence[EngineCoreOutput], live: set[str]) -> list[EngineCoreOutput]:
    """Without news that an abort has crossed; takes those that end from `live`."""
    wanted: list[EngineCoreOutput] = []
    for output in outputs:
        if output.request_id in live:
            wanted.append(output)
            if output.finish_reason is not None:
                live.discard(output.request_id)
    return wanted
