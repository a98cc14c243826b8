"""`EnginePort`: the way to an `EngineLoop` that runs elsewhere. Clients stand on it and do not know what carries it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, Protocol

from ...errors import EngineDeadError
from ...scheduler.output import EngineCoreOutput, EngineRequest
from ..info import EngineInfo
from .messages import Method

Tidings = list[EngineCoreOutput] | EngineDeadError
"""News of requests, or that there will be none any more."""
Listener = Callable[[Tidings], None]
"""Called from a thread of the port's; must not block."""
P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """`method` for a port to call, which does so keep nobody: it is left out once its object has gone.

    An engine ends with whoever uses it, and a port may outlive that for a while.
    """
    held = weakref.WeakMethod(method)

    def call(*args: P.args, **keywords: P.kwargs) -> None:
        if (there := held()) is not None:
            there(*args, **keywords)

    return call


class EnginePort(Protocol):
    """Methods may be called from any thread, and none waits for the engine but `close`."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def dead(self) -> EngineDeadError | None:
        """Why nothing can be asked any more."""
        ...

    def listen(self, listener: Listener) -> None:
        """Whom to tell of news, from now on; called once, before the first request. A death of before is told."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Send a request that `EngineInfo` says is admissible."""
        ...

    def ask(self, request: EngineRequest) -> Future[None]:
        """Send a request that may be refused; the future ends with what the engine says against it."""
        ...

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Have requests ended; news of them may still be on their way."""
        ...

    def call(self, method: Method, *args: Any) -> Future[Any]:
        """Have a method of the core called between two steps. The future ends with `EngineDeadError` where it dies."""
        ...

    def close(self) -> None:
        """End the engine, and wait for that."""
        ...
