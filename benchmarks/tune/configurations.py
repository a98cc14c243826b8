"""The fastest configuration of a backend for a kind of layer, of those that it offers for a phase."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.attention import AttentionSpec
from ...core.errors import InvalidInput
from ...plugins import Failure, Guard, Offer
from ...selector.judge import Judge
from ..ab.verdicts import LEAST
from ..kernels.report import Row
from ..kernels.run import Entry, KernelBench, Settings
from .winners import mean_time, objection, winner_of

TOGETHER = 8
"""Configurations that are measured in the same rounds, the default among them: each has a KV cache of its own."""
FINALISTS = 3
"""Those that were fastest in a few rounds are held against the default in all."""


def configurations_of(
    offer: Offer, spec: AttentionSpec, phase: str, judge: Judge, guard: Guard
) -> list[Mapping[str, Any]]:
    """What the backend offers for a phase and takes as options; what goes wrong in that is told, and it has none."""
    cls = offer.load()
    if cls is None:
        return []
    offered = guard.ask(lambda: cls.configurations(spec, judge.device, phase), tuple)
    if isinstance(offered, Failure):
        guard.complain(f"{offer.label}: configurations() raised {offered}")
        return []
    found: list[Mapping[str, Any]] = []
    for options in offered:
        try:
            judge.options(offer, options)
            found.append(options)
        except InvalidInput as refusal:
            guard.complain(f"{offer.label} offers a configuration that it refuses: {refusal.problem}")
    return found


class Race:
    """Configurations of one backend against its defaults, on the shapes of one phase."""

    def __init__(
        self, offer: Offer, configurations: Sequence[Mapping[str, Any]], settings: Settings, judge: Judge, guard: Guard
    ) -> None:
        self.options: Mapping[str, Any] = {}
        """The winner's, after `run`; empty where nothing was shown to be faster than the defaults."""
        self.reasons: dict[str, str] = {}
        """Name → why a configuration was dropped: its output was wrong, or it failed, for want of registers say."""
        self._default = Entry(name=offer.label, offer=offer)
        self._entries = [Entry(name=_name(offer, o), offer=offer, options=o) for o in configurations]
        self._settings, self._judge, self._guard = settings, judge, guard

    @property
    def steps(self) -> int:
        """Rows that `run` gives, at most."""
        return (len(self._groups()) + 1) * len(self._settings.shapes) if self._entries else 0

    def run(self) -> Iterator[Row]:
        """Measure: all in few rounds, a few at a time, then the fastest in all rounds. Every output is checked."""
        times: dict[str, float] = {}
        for group in self._groups():
            rows = yield from self._rows(group, replace(self._settings, rounds=LEAST))
            times |= {entry.name: mean_time(rows, entry.name) for entry in group if not self._objection(rows, entry)}
        finalists = [e for e in self._entries if e.name in sorted(times, key=times.__getitem__)[:FINALISTS]]
        if finalists:
            rows = yield from self._rows(finalists, self._settings)
            sound = [e for e in (self._default, *finalists) if not self._objection(rows, e)]
            if sound:
                best, _ = winner_of(rows, [e.name for e in sound])
                self.options = next(e.options for e in sound if e.name == best)

    def _groups(self) -> list[list[Entry]]:
        size = TOGETHER - 1
        return [self._entries[i : i + size] for i in range(0, len(self._entries), size)]

    def _rows(self, entries: Sequence[Entry], settings: Settings) -> Generator[Row, None, list[Row]]:
        rows: list[Row] = []
        for row in KernelBench(settings, [self._default, *entries], (), self._judge, self._guard).rows():
            rows.append(row)
            yield row
        return rows

    def _objection(self, rows: Sequence[Row], entry: Entry) -> str:
        reason = objection(rows, entry.name)
        if reason:
            self.reasons[entry.name] = reason
        return reason


def _name(offer: Offer, options: Mapping[str, Any]) -> str:
    return offer.label + json.dumps(dict(options), default=str)
