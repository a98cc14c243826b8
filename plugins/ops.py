"""`Ops`: functions that packages put in the place of a kernel library's, by entry points."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from .guard import Guard
from .record import AITER_OPS, PluginRecord


class Ops:
    """Owner of the records, and of how they fared. Whoever calls the functions imports them.

    Where two packages replace the same op neither is used: nobody has said which.
    """

    def __init__(self, records: Iterable[PluginRecord], guard: Guard | None = None) -> None:
        self._guard = guard or Guard()
        ours = [r for r in records if r.group == AITER_OPS]
        self._records = [_settled(r, [o for o in ours if o.name == r.name and o.status == "not loaded"]) for r in ours]

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        return tuple(self._records)

    def targets(self, decided: Container[str] = ()) -> dict[str, PluginRecord]:
        """Op → who takes its place. Warns of those that are left out, unless the user has `decided` about the op."""
        for record in self._records:
            if record.reason and record.status != "disabled" and record.name not in decided:
                self._guard.warn(record.complaint)
        return {r.name: r for r in self._records if r.status == "not loaded"}

    def fail(self, record: PluginRecord, reason: str) -> None:
        """Leave one out from now on, with a warning; in strict mode raises `BackendError`."""
        failed = replace(record, status="failed", reason=reason)
        self._records[self._records.index(record)] = failed
        self._guard.complain(failed.complaint)


def _settled(record: PluginRecord, rivals: list[PluginRecord]) -> PluginRecord:
    """`record`, refused where it is one of several that could be used."""
    if record not in rivals or len(rivals) == 1:
        return record
    who = " and ".join(f"{r.package} ({r.target})" for r in rivals)
    advice = f"say which: --aiter-op {record.name}={rivals[0].target}"
    return replace(record, status="refused", reason=f"{record.name} is replaced by {who}: neither is used; {advice}")
