"""What passes between an engine's loop and its clients, as values: commands one way, events the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...scheduler.output import EngineCoreOutput, EngineRequest

Method = Literal["stats", "reset_prefix_cache", "pause", "resume", "sleep", "wake_up"]
"""Methods of `EngineCore` that a client may call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Queue a request. With a number, a `Reply` says whether it was taken; else, where it is not, its last news do."""

    request: EngineRequest
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """End requests. No answer, and no news of them from then on."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call a method between two steps; answered by a `Reply` of the same number."""

    number: int
    method: Method
    args: tuple[Any, ...] = ()


Command = Add | Abort | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What became of requests in a step."""

    outputs: list[EngineCoreOutput]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a `Call`: a value, or what was raised."""

    number: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The engine raised something that it cannot go on after. The last event."""

    reason: str
    traceback: str = ""


Event = News | Reply | Died
