"""`Carrier`: what connects a port with one `EngineLoop`, wherever that runs."""

from __future__ import annotations

from typing import Protocol

from ..info import EngineInfo
from .desk import Desk
from .messages import Command


class Carrier(Protocol):
    """Carries commands to a loop, and the loop's events to its desk. Making one begins to start the engine."""

    @property
    def desk(self) -> Desk:
        """Where events arrive; told of the engine's end, too."""
        ...

    def ready(self) -> EngineInfo:
        """Wait until the engine is. Raises what it is refused for, and `EngineDeadError` where it crashes."""
        ...

    def send(self, command: Command) -> None:
        """From any thread, without waiting; nothing where the engine is dead, of which the desk tells everybody."""
        ...

    def close(self) -> None:
        """End the engine, wait for that, and tell the desk. Called once, also where the engine has never been ready."""
        ...
