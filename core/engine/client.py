"""How a front end speaks to an engine, wherever it lives: two protocols, synchronous and asyncio.

Token ids, counts and plain values cross them, never text or tensors. A *life* is an implementation: in this process,
in a child process, in many of them, in Ray actors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from ..scheduler.output import EngineCoreOutput, EngineRequest
from ..scheduler.stats import SchedulerStats
from .info import EngineInfo

PauseMode = Literal["abort", "wait", "keep"]
"""What happens to requests when an engine pauses. ``abort``: they end. ``wait``: they finish first, and requests that
come meanwhile are kept for later. ``keep``: they stay as they are, blocks and all, until `resume`."""


class EngineClient(Protocol):
    """Synchronous. One thread calls it. Once the engine is dead, everything but `close` raises `EngineDeadError`."""

    @property
    def info(self) -> EngineInfo: ...

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; raises `InvalidInput` or `CapacityError` with nothing kept of it.

        Its id must be new: after an abort, news of the id may still be on their way.
        """
        ...

    def abort_requests(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End these requests in whatever state they are; their last news. Unknown and ended ids are ignored."""
        ...

    def get_outputs(self) -> list[EngineCoreOutput]:
        """The next news, in order; blocks until there are some. In this thread it computes a step, maybe without news.

        Raises `HeadstockError` where none can come, as the engine is paused and nobody else could resume it.
        """
        ...

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not had its last news from `get_outputs` or `abort_requests`."""
        ...

    def stats(self) -> SchedulerStats:
        """Counts as of now; over several engines, summed."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, with nothing done, while requests hold blocks."""
        ...

    def pause(self, mode: PauseMode = "abort") -> None:
        """Compute nothing from now on; returns when that is so. Requests that come later wait for `resume`."""
        ...

    def resume(self) -> None:
        """End a pause; nothing where there is none."""
        ...

    def sleep(self, level: int = 1) -> None:
        """Give memory back: level 1 the KV cache with all prefixes, level 2 the weights as well.

        Requests that come meanwhile wait for `wake_up`. Raises `HeadstockError` while requests live: pause first.
        """
        ...

    def wake_up(self) -> None:
        """End a sleep: the cache is allocated again, and weights are read again; nothing where awake."""
        ...

    def close(self) -> None:
        """End the engine and all that belongs to it. May be called again, and after the engine's death."""
        ...


class AsyncEngineClient(Protocol):
    """The same for asyncio; meanings are `EngineClient`'s. Belongs to the loop of its first call."""

    @property
    def info(self) -> EngineInfo: ...

    async def add_request(self, request: EngineRequest) -> None: ...

    async def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End these requests: no news of them comes any more. Unknown and ended ids are ignored."""
        ...

    async def get_outputs(self) -> list[EngineCoreOutput]:
        """The next news, in order, of all steps since the last call; waits until there are some. One task calls it."""
        ...

    def check_health(self) -> None:
        """Raise `EngineDeadError` where the engine is dead; costs nothing."""
        ...

    async def stats(self) -> SchedulerStats: ...

    async def reset_prefix_cache(self) -> bool: ...

    async def pause(self, mode: PauseMode = "abort") -> None:
        """As `EngineClient.pause`; requests that it aborts get last news with finish reason ``abort``."""
        ...

    async def resume(self) -> None: ...

    async def sleep(self, level: int = 1) -> None: ...

    async def wake_up(self) -> None: ...

    def close(self) -> None: ...
