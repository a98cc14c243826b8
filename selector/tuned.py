"""What `headstock tune` measured on this machine, and what of it still holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..core.attention import AttentionSpec, Device
from ..plugins import Plugins
from ..plugins.environment import TUNED, read, truth
from ..plugins.sources import source_hash
from .tuned_file import PLAIN_BLOCK, UNREADABLE, Tried, TunedEntry, changes, default_path, fingerprint, read_tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A backend that was measured to be the one for a layer."""

    backend: str
    why: str
    """For the origin of the choice."""
    known: frozenset[str]
    """Names of the backends that were there then and are the same today: nobody knows how fast others are."""


class Tuned(Protocol):
    """What the selector asks of measurements."""

    def fastest(self, spec: AttentionSpec, device: Device, phase: str) -> Measured | None:
        """The backend that was measured to be the fastest right one in a phase, if any was."""
        ...

    def options(self, backend: str, spec: AttentionSpec, device: Device, phase: str) -> Mapping[str, Any]:
        """The configuration in which `backend` was measured to be fastest; empty where that is its own."""
        ...


class TunedTable:
    """Answers the selector from a file; what is stale or broken is left out with one warning."""

    def __init__(self, plugins: Plugins, path: Path, *, named: bool = False) -> None:
        """`named`: the user asked for this file, and wants to know where there is none."""
        self._named = named
        self._plugins = plugins
        self._path = path
        self._entries: tuple[TunedEntry, ...] | None = None
        self._same: dict[tuple[str, str, str], bool] = {}
        """Backend, package and hash that were measured → whether they are those of today."""

    def fastest(self, spec: AttentionSpec, device: Device, phase: str) -> Measured | None:
        """As `Tuned` says; None, and a warning, where the winner is gone or has changed since."""
        entry = self._entry(spec, device, phase)
        if entry is None:
            return None
        winner = entry.tried[entry.backend]
        if not self._unchanged(entry.backend, winner):
            here = self._plugins.backends.get(entry.backend) is not None
            fate = f"measured it as {winner.package}, and it has changed since" if here else "it is not here any more"
            self._warn(f"its choice {entry.backend} does not count: {fate}")
            return None
        gain = f"{entry.ratio:.2f} times as fast as {entry.against}" if entry.backend != entry.against else "as ranked"
        return Measured(
            backend=entry.backend,
            why=f"tuned (measured on this machine: {gain})",
            known=frozenset(name for name, tried in entry.tried.items() if self._unchanged(name, tried)),
        )

    def options(self, backend: str, spec: AttentionSpec, device: Device, phase: str) -> Mapping[str, Any]:
        """As `Tuned` says; empty, too, where the backend has changed since."""
        entry = self._entry(spec, device, phase)
        tried = entry.tried.get(backend) if entry else None
        return tried.options if tried and self._unchanged(backend, tried) else {}

    def _entry(self, spec: AttentionSpec, device: Device, phase: str) -> TunedEntry | None:
        if device.assumed:
            return None
        if self._entries is None:
            self._entries = self._read(device)
        plain = replace(spec, block_size=PLAIN_BLOCK)
        return next((e for e in self._entries if e.phase == phase and e.spec == plain), None)

    def _read(self, device: Device) -> tuple[TunedEntry, ...]:
        try:
            then, entries = read_tuned(self._path)
        except FileNotFoundError:
            if self._named:
                self._warn("it does not exist")
            return ()
        except UNREADABLE as error:
            self._warn(f"it cannot be read ({type(error).__name__}: {error})")
            return ()
        if changed := changes(then, fingerprint(device)):
            self._warn(f"it is of another machine or version: {'; '.join(changed)}")
            return ()
        return entries

    def _unchanged(self, backend: str, tried: Tried) -> bool:
        """Whether the backend is the one that was there then; sources are hashed once, not for every layer."""
        then = (backend, tried.package, tried.source_hash)
        if then not in self._same:
            offer = self._plugins.backends.get(backend)
            cls = offer.load() if offer is not None else None
            self._same[then] = (
                offer is not None and cls is not None and ((offer.record.package, source_hash(cls)) == then[1:])
            )
        return self._same[then]

    def _warn(self, problem: str) -> None:
        self._plugins.guard.warn(f"{self._path} is not used: {problem}; run headstock tune again")


def installed_tuning(plugins: Plugins) -> TunedTable | None:
    """The table that `HEADSTOCK_TUNED` names, or the user's own; None where the variable says 0."""
    asked = read(TUNED)
    if asked and truth(asked) is False:
        return None
    return TunedTable(plugins, Path(os.path.expanduser(asked)) if asked else default_path(), named=bool(asked))
