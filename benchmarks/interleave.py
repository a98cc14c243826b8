"""Who is measured when: rounds in which everybody has a turn, in an order that favours nobody."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Protocol

from .load import LoadMeter

TURN_SECONDS = 0.015
"""Calls fill about so much of a turn: enough to be seen above the clock and the wake-up of threads."""
MOST_CALLS = 50
LEAST_ROUNDS = 6
"""Below, no interval of a median has 95 %."""
SLOW_SECONDS, LEAST_SLOW_ROUNDS = 0.5, 3
"""Whoever takes so long a call has only so many rounds at least."""
ENDLESS_SECONDS = 2.0
"""Whoever takes so long a call is not called again: its first call is its only measurement."""
WARM_SECONDS = 0.02
"""Calls shorter than this follow an uncounted one, which brings back the caches that others have emptied."""


class Contender(Protocol):
    """Whose calls can be timed."""

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        """Seconds of each of `calls` calls, after an uncounted one if `warm`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a contender is called."""

    calls: int
    """A turn."""
    rounds: int
    warm: bool

    @classmethod
    def of(cls, seconds: float, budget: float, rounds: int) -> Pace:
        """For calls of `seconds`: turns of `budget` seconds in all, in at most `rounds` rounds."""
        calls = max(1, min(MOST_CALLS, int(TURN_SECONDS / seconds)))
        least = LEAST_ROUNDS if seconds < SLOW_SECONDS else LEAST_SLOW_ROUNDS
        wanted = max(least, int(budget / (calls * seconds)))
        return cls(calls=calls, rounds=min(rounds, wanted), warm=seconds < WARM_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What the rounds gave."""

    seconds: Mapping[str, Mapping[int, float]]
    """Median seconds a call by contender and round."""
    rounds: int
    """How many there were."""
    disturbed: frozenset[int]
    """Rounds in which others kept the CPUs visibly busy; left out of `seconds` unless too few would remain."""
    kept_disturbed: bool
    """Whether too few would have remained."""
    other_load: float | None
    """CPUs that others kept busy, on average; None where that cannot be told."""


def balanced_orders(count: int) -> list[list[int]]:
    """Orders of 0…count-1 in which everybody is equally often at each place, and equally often right behind each other.

    Williams 1949: rotations of 0, 1, n-1, 2, n-2, …; for an odd count the reversed ones too.
    """
    zigzag = [0]
    for step in range(1, count):
        zigzag.append((step + 1) // 2 if step % 2 else count - step // 2)
    orders = [[(place + shift) % count for place in zigzag] for shift in range(count)]
    return orders + [order[::-1] for order in orders] if count % 2 and count > 1 else orders


def schedule(quotas: Mapping[str, int]) -> Iterator[list[str]]:
    """Who has a turn in each round, and in which order.

    There are as many rounds as the greatest quota. A smaller one is spread over them, and whoever has a turn in a round
    has it beside everybody whose quota is not smaller, so that ratios find their partners.
    """
    names, total = list(quotas), max(quotas.values(), default=0)
    orders = balanced_orders(len(names))
    first = sorted(range(total), key=lambda number: f"{number:032b}"[::-1])  # 0, half, quarters, …
    place = {number: index for index, number in enumerate(first)}
    for number in range(total):
        order = [names[i] for i in orders[number % len(orders)]]
        yield [name for name in order if place[number] < quotas[name]]


def interleave(
    contenders: Mapping[str, Contender],
    paces: Mapping[str, Pace],
    meter: LoadMeter,
    least: int = LEAST_SLOW_ROUNDS,
    spare: int = 0,
) -> Samples:
    """Run the rounds, and at most `spare` more in the place of disturbed ones: how many depends on others' load alone,
    and on no time that was measured. Disturbed ones count where of some contender fewer than `least` others remain."""
    found: dict[str, dict[int, float]] = {name: {} for name in paces}
    disturbed: set[int] = set()
    open_rounds: list[int] = []
    total = 0
    meter.start()
    with no_garbage_collection():
        quotas = {name: pace.rounds for name, pace in paces.items()}
        for number, order in enumerate(_rounds(quotas, disturbed, spare)):
            for name in order:
                pace = paces[name]
                found[name][number] = median(contenders[name].turn(pace.calls, pace.warm))
            open_rounds.append(number)
            total = number + 1
            if (busy := meter.lap()) is not None:
                disturbed.update(open_rounds if busy else ())
                open_rounds.clear()
    if meter.lap(final=True):
        disturbed.update(open_rounds)
    clean = {name: {r: t for r, t in times.items() if r not in disturbed} for name, times in found.items()}
    enough = all(len(clean[name]) >= min(least, len(found[name])) for name in found)
    return Samples(
        seconds=clean if enough else found,
        rounds=total,
        disturbed=frozenset(disturbed),
        kept_disturbed=bool(disturbed) and not enough,
        other_load=meter.average,
    )


def _rounds(quotas: Mapping[str, int], disturbed: Collection[int], spare: int) -> Iterator[list[str]]:
    """The schedule, and its beginning again while there are more disturbed rounds than were made up for."""
    yield from schedule(quotas)
    for made_up, order in enumerate(schedule(quotas)):
        if made_up >= min(spare, len(disturbed)):
            return
        yield order


def timed_calls(call: Callable[[], object], calls: int, warm: bool) -> list[float]:
    """A turn of a contender in this process."""
    if warm:
        call()
    seconds: list[float] = []
    for _ in range(calls):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return seconds


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector would add its own time to somebody's turn."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
