"""`Plugins`: everything that is installed, behind the user's switches. The composition root makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .discovery import discover
from .guard import Guard
from .hooks import Hooks
from .record import AITER_OPS, PluginRecord
from .registry import BackendRegistry
from .switches import Switches, read_switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """What packages bring."""

    backends: BackendRegistry
    hooks: Hooks
    ops: tuple[PluginRecord, ...] = ()
    """Functions that take the place of ops of AITER's; whoever calls them imports them."""
    guard: Guard
    """Runs their code, and warns about it."""

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every entry point and how it fared so far."""
        return (*(offer.record for offer in self.backends.offers), *self.hooks.records, *self.ops)

    def aiter_ops(self) -> dict[str, str]:
        """Op → ``"module:function"`` that takes its place. One that two packages replace stays AITER's own."""
        usable = [record for record in self.ops if record.status == "not loaded"]
        for record in self.ops:
            if record.status != "disabled" and record.reason:
                self.guard.warn(record.complaint)
        targets: dict[str, list[PluginRecord]] = {}
        for record in usable:
            targets.setdefault(record.name, []).append(record)
        for name, rivals in targets.items():
            if len(rivals) > 1:
                who = " and ".join(f"{r.package} ({r.target})" for r in rivals)
                self.guard.warn(f"the AITER op {name} is replaced by {who}: neither is used; say which in aiter_ops")
        return {name: rivals[0].target for name, rivals in targets.items() if len(rivals) == 1}


def load_plugins(switches: Switches | None = None, environ: Mapping[str, str] | None = None) -> Plugins:
    """Find what is installed. Backends are imported when needed, hook modules at the first hook.

    Warns of switches that turn nothing. Raises `InvalidInput` for a switch that is neither on nor off.
    """
    switches = read_switches(environ) if switches is None else switches
    guard = Guard(strict=switches.strict)
    records = discover(switches)
    for warning in switches.strangers(record.distribution for record in records):
        guard.warn(warning)
    ops = tuple(record for record in records if record.group == AITER_OPS)
    return Plugins(backends=BackendRegistry(records, guard), hooks=Hooks(records, guard), ops=ops, guard=guard)
