"""`Plugins`: everything that is installed, behind the user's switches. The composition root makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .discovery import discover
from .guard import Guard
from .hooks import Hooks
from .ops import Ops
from .record import PluginRecord
from .registry import BackendRegistry
from .switches import Switches, read_switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """What packages bring."""

    backends: BackendRegistry
    hooks: Hooks
    ops: Ops
    """Functions in the place of ops of AITER's."""
    guard: Guard
    """Runs their code, and warns about it."""

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every entry point of a backend or of hooks, and how it fared so far."""
        return (*(offer.record for offer in self.backends.offers), *self.hooks.records)


def load_plugins(switches: Switches | None = None, environ: Mapping[str, str] | None = None) -> Plugins:
    """Find what is installed. Backends are imported when needed, hook modules at the first hook.

    Warns of switches that turn nothing. Raises `InvalidInput` for a switch that is neither on nor off.
    """
    switches = read_switches(environ) if switches is None else switches
    guard = Guard(strict=switches.strict)
    records = discover(switches)
    for warning in switches.strangers(record.distribution for record in records):
        guard.warn(warning)
    hooks = Hooks(records, guard)
    return Plugins(backends=BackendRegistry(records, guard), hooks=hooks, ops=Ops(records, hooks, guard), guard=guard)
