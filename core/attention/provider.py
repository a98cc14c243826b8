"""`AttentionProvider`: how the engine is handed its backends. The engine asks once and never selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .backend import AttentionBackend
from .cache import KVLayout
from .device import Device
from .spec import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A backend that was considered and not taken."""

    backend: str
    reasons: tuple[str, ...]
    """All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """The backend of one layer, and why."""

    backend: str
    """Name, as the entry point has it; a composite's is ``"decode=A,prefill=B"``."""
    cls: type[AttentionBackend[Any]]
    distribution: str
    """Package it comes from, with version, e.g. ``"headstock 0.1.0"``."""
    origin: str
    """Who decided: layer, kind, phase, flag, environment, tuned or ranked, with the detail after a colon."""
    options: Any = None
    """Instance of `cls.Options`."""
    rejected: tuple[Rejection, ...] = ()
    """Better ranked backends and all reasons against each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSelection:
    """The answer for a whole model."""

    choices: Mapping[str, AttentionChoice]
    """By layer name."""
    block_size: int
    """Tokens a block: what was asked, or the first size that all chosen backends take."""
    layout: KVLayout
    """The first layout that all chosen backends read."""
    notes: tuple[str, ...] = field(default=())
    """What the log should say, e.g. that a block size was changed and for whom."""

    def summary(self) -> tuple[str, ...]:
        """A line a backend: name, package, who decided, how many layers; why none that ranks higher; then the notes."""
        served: dict[tuple[str, str, str], int] = {}
        for choice in self.choices.values():
            key = (choice.backend, choice.distribution, choice.origin)
            served[key] = served.get(key, 0) + 1
        total = len(self.choices)
        chosen = [
            f"attention backend: {backend} ({distribution}) for "
            + (f"all {total} layers" if count == total else f"{count} of {total} layers")
            + f"; why: {origin}"
            for (backend, distribution, origin), count in served.items()
        ]
        rejected = dict.fromkeys(rejection for choice in self.choices.values() for rejection in choice.rejected)
        return (*chosen, *(f"not {r.backend}: {'; '.join(r.reasons)}" for r in rejected), *self.notes)


class AttentionProvider(Protocol):
    """Implemented by the selector, by bridges and by tests."""

    def select(
        self, specs: Mapping[str, AttentionSpec], device: Device, block_size: int | None = None
    ) -> AttentionSelection:
        """A backend for each layer of `specs`; raises `BackendError` with all reasons where there is none.

        `block_size` None leaves the size to the backends; the specs' own is then a wish.
        """
        ...
