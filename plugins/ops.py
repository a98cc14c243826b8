"""`Ops`: functions that packages put in the place of a kernel library's, by entry points and by a hook."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from .guard import Guard
from .hooks import Hooks
from .record import AITER_OPS, PluginRecord

if TYPE_CHECKING:
    from ..core.attention import Device


class Ops:
    """Knows who replaces what, and which of them failed. Whoever calls the functions imports them.

    Where two packages replace the same op on a device neither is used: nobody has said which.
    """

    def __init__(self, records: Iterable[PluginRecord], hooks: Hooks, guard: Guard | None = None) -> None:
        self._declared = [r for r in records if r.group == AITER_OPS]
        self._hooks = hooks
        self._guard = guard or Guard()
        self._failed: dict[PluginRecord, PluginRecord] = {}

    def records(self, device: Device) -> tuple[PluginRecord, ...]:
        """All that are for `device`, and how they fare: entry points are for every one."""
        offered = [self._failed.get(r, r) for r in (*self._declared, *self._hooks.ops(device))]
        usable = [r for r in offered if r.status == "not loaded"]
        return tuple(_settled(r, [u for u in usable if u.name == r.name]) for r in offered)

    def targets(self, device: Device, decided: Container[str] = ()) -> dict[str, PluginRecord]:
        """Op → who takes its place. Warns of those that are left out, unless the user has `decided` about the op."""
        records = self.records(device)
        for record in records:
            if record.reason and record.status != "disabled" and record.name not in decided:
                self._guard.warn(record.complaint)
        return {record.name: record for record in records if record.status == "not loaded"}

    def fail(self, record: PluginRecord, reason: str) -> None:
        """Leave one out from now on, with a warning; in strict mode raises `BackendError`."""
        self._failed[record] = replace(record, status="failed", reason=reason)
        self._guard.complain(self._failed[record].complaint)


def _settled(record: PluginRecord, rivals: list[PluginRecord]) -> PluginRecord:
    """`record`, refused where it is one of several that could be used."""
    if record not in rivals or len(rivals) == 1:
        return record
    who = " and ".join(f"{r.package} ({r.target})" for r in rivals)
    advice = f"say which: --aiter-op {record.name}={rivals[0].target}"
    return replace(record, status="refused", reason=f"{record.name} is replaced by {who}: neither is used; {advice}")
