"""`Plugins`: everything that is installed, behind the user's switches. The composition root makes one."""

from __future__ import annotations

from dataclasses import dataclass

from .discovery import discover
from .guard import Guard
from .hooks import Hooks
from .record import PluginRecord
from .registry import BackendRegistry
from .switches import Switches, read_switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """What packages bring."""

    backends: BackendRegistry
    hooks: Hooks
    guard: Guard
    """Runs their code, and warns about it."""

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every entry point and how it fared so far."""
        return (*(offer.record for offer in self.backends.offers), *self.hooks.records)


def load_plugins(switches: Switches | None = None) -> Plugins:
    """Find what is installed. Backends are imported when needed, hook modules at the first hook.

    Raises `InvalidInput` where a switch in the environment is neither on nor off.
    """
    switches = read_switches() if switches is None else switches
    guard = Guard(strict=switches.strict)
    records = discover(switches)
    for warning in switches.strangers(record.distribution for record in records):
        guard.warn(warning)
    return Plugins(backends=BackendRegistry(records, guard), hooks=Hooks(records, guard), guard=guard)
