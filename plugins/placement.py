"""`Placement`: how a plugin ranks its own backend."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A place in the automatic order, next to a backend that has one. Takes either `before` or `after`."""

    backend: str
    """Name of a backend that the same package offers."""
    before: str = ""
    after: str = ""

    def __post_init__(self) -> None:
        if bool(self.before) == bool(self.after):
            raise InvalidInput("Placement", "takes either before= or after=, and one of them it needs")
