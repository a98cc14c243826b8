"""The run of a kind of layer: first configurations of backends that have any, then the backends themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.attention import AttentionSpec
from ...plugins import Guard, Offer
from ...selector.judge import Judge
from ...selector.policy import PHASES
from ...selector.tuned_file import TunedEntry
from ..kernels.report import Row
from ..kernels.run import Entry, KernelBench
from .configurations import Race, configurations_of
from .measure import Regimes, entries_for, settings_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Who is measured on what."""

    offers: Sequence[Offer]
    """In the order of the ranking."""
    left_out: Sequence[Offer]
    """Those that could take part, and were not asked to."""
    regimes: Regimes
    rounds: int
    threads: int


class TuneRun:
    """One kind of layer."""

    def __init__(self, spec: AttentionSpec, contest: Contest, judge: Judge, guard: Guard) -> None:
        self.rows: list[Row] = []
        """Of the backends against each other, after `measure`."""
        self._spec, self._contest, self._judge, self._guard = spec, contest, judge, guard
        self._races = {(offer.label, phase): self._race(offer, phase) for offer in contest.offers for phase in PHASES}

    @property
    def steps(self) -> int:
        """Rows that `measure` gives, at most."""
        return sum(race.steps for race in self._races.values()) + len(self._contest.regimes.shapes(self._spec))

    @property
    def choices(self) -> int:
        """Backends and configurations of theirs."""
        return len(self._contest.offers) + sum(race.steps > 0 for race in self._races.values())

    def measure(self) -> Iterator[Row]:
        """Every row, as it is measured."""
        contest = self._contest
        for race in self._races.values():
            yield from race.run()
        options: dict[str, dict[str, Any]] = {offer.label: {} for offer in contest.offers}
        for (label, _), race in self._races.items():
            options[label] |= race.options
        entries = [Entry(name=o.label, offer=o, options=options[o.label]) for o in contest.offers]
        settings = settings_for(self._spec, contest.regimes.shapes(self._spec), contest.rounds, contest.threads)
        for row in KernelBench(settings, entries, (), self._judge, self._guard).rows():
            self.rows.append(row)
            yield row

    def entries(self) -> list[TunedEntry]:
        """What goes into the file, after `measure`."""
        configured: dict[tuple[str, str], Mapping[str, Any]] = {at: race.options for at, race in self._races.items()}
        return entries_for(self._spec, self.rows, self._contest.offers, self._contest.left_out, configured)

    def dropped(self) -> dict[str, str]:
        """Configurations that were wrong or failed, and why."""
        return {name: reason for race in self._races.values() for name, reason in race.reasons.items()}

    def _race(self, offer: Offer, phase: str) -> Race:
        contest, spec = self._contest, self._spec
        settings = settings_for(spec, contest.regimes.of_phase(spec, phase), contest.rounds, contest.threads)
        found = configurations_of(offer, spec, phase, self._judge, self._guard)
        return Race(offer, found, settings, self._judge, self._guard)
