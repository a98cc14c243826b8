"""Verdicts over simulated machines: how often two equal arms are called different, and a true difference is missed.

What is simulated is the machine and the kernels. Rounds and their order, the load meter, which rounds are left out and
made up for, and the verdict are those of the command.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest

from headstock.benchmarks import load
from headstock.benchmarks.ab.lines import kernel_comparison
from headstock.benchmarks.ab.report import ArmReport, Comparison
from headstock.benchmarks.ab.verdicts import LEAST, LUCK, ROUNDS, drift, paired_ratio
from headstock.benchmarks.interleave import Pace, interleave
from headstock.benchmarks.kernels.report import Measurement
from headstock.benchmarks.kernels.rows import Task, finished
from headstock.benchmarks.kernels.shapes import choose

SHARES = (0.0, 0.15, 0.3)
"""Of the time in which others are busy, by comparison."""
TASK = Task(shape=choose("decode:4/2/32:2x64", "all", ())[0], dtype="float32", threads=1)
CALL = 0.004
"""Seconds of a call of the baseline."""


class Machine:
    """A clock that calls move on. The machine wanders and swings; others come and go, and keep a CPU busy meanwhile;
    each turn has 3 % noise of its own, and one call in twenty is delayed by some 40 %, whatever the load."""

    def __init__(self, rng: np.random.Generator, busy: float) -> None:
        self._rng, self._busy = rng, busy
        self.clock = self.ours = self.others = self._wandering = 0.0
        self._until, self._next, self._slow = 0.0, rng.exponential(2.0) if busy else math.inf, 1.0

    def turn(self, seconds: float, calls: int) -> list[float]:
        """Seconds of each call."""
        rng = self._rng
        self._wandering += rng.normal(0, 0.01)
        level = self._wandering + 0.1 * math.sin(self.clock / 0.3) + rng.normal(0, 0.03)
        delays = np.where(rng.random(calls) < 0.05, rng.exponential(0.4, calls), 0.0)
        return [self._call(seconds * t) for t in np.exp(level + rng.normal(0, 0.01, calls) + delays)]

    def _call(self, seconds: float) -> float:
        if self.clock >= self._next:  # others begin, for a while that fills their share of the time
            length = 0.2 + self._rng.exponential(1.5 * self._busy)
            self._until, self._slow = self.clock + length, 1 + self._rng.uniform(0.2, 1.0)
            self._next = self._until + length * (1 - self._busy) / self._busy
        disturbed = self.clock < self._until
        taken = seconds * self._slow if disturbed else seconds
        self.others += taken if disturbed else 0.0
        self.clock += taken
        self.ours += taken
        return taken


class Kernel:
    def __init__(self, machine: Machine, seconds: float) -> None:
        self._machine, self._seconds = machine, seconds

    def turn(self, calls: int, warm: bool) -> list[float]:
        return self._machine.turn(self._seconds, calls)


class Meter(load.LoadMeter):
    """The meter, over a simulated machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._first = self._last = self._read()

    def _read(self) -> load._Reading:
        it = self._machine
        return load._Reading(it.clock, it.ours + it.others, it.ours)


def arm(label: str) -> ArmReport:
    return ArmReport(label=label, backend=label, options={}, python="", package="", torch="", source_hash="")


def compared(rng: np.random.Generator, effect: float, busy: float, rounds: int = ROUNDS) -> Comparison:
    """As the command does it. The second kernel takes `effect` times as long."""
    machine = Machine(rng, busy)
    kernels = {"a": Kernel(machine, CALL), "b": Kernel(machine, CALL * effect)}
    paces = {name: Pace.of(CALL, 1e9, rounds) for name in kernels}
    samples = interleave(kernels, paces, Meter(machine), LEAST, rounds)
    row = finished(TASK, {name: Measurement(name=name) for name in kernels}, samples, paces, {}, None)
    return kernel_comparison(arm("b"), arm("a"), [row])


@pytest.fixture(autouse=True)
def _no_garbage_is_collected(monkeypatch):
    """Before each comparison: it takes longer than all the rest of it."""
    monkeypatch.setattr("headstock.benchmarks.interleave.no_garbage_collection", nullcontext)


def comparisons(
    seed: int, count: int, effect: float, shares: tuple[float, ...] = SHARES, **options
) -> list[Comparison]:
    rng = np.random.default_rng(seed)
    return [compared(rng, effect, shares[number % len(shares)], **options) for number in range(count)]


def false(found: list[Comparison]) -> int:
    return sum(one.verdict != "no difference shown" for one in found)


def test_two_equal_arms_are_called_different_in_at_most_7_of_100_comparisons():
    assert false(comparisons(1, 1000, 1.0)) <= 70


@pytest.mark.parametrize(("effect", "word"), [(1.05, "slower"), (1 / 1.05, "faster")])
def test_a_difference_of_5_percent_is_missed_in_at_most_1_of_20(effect, word):
    found = comparisons(2, 300, effect)
    assert sum(one.verdict != word for one in found) <= 15
    ratios = [one.ratio for one in found if one.ratio]
    inside = sum(ratio.low <= 1 / effect <= ratio.high for ratio in ratios)
    assert inside >= 0.92 * len(found)  # the interval holds the truth as often as it says, or nearly


def test_on_a_machine_that_is_never_quiet_equal_arms_stay_equal():
    """All rounds are disturbed, and kept."""
    assert false(comparisons(7, 200, 1.0, shares=(0.95,))) <= 14


def test_few_rounds_do_not_loosen_it():
    assert false(comparisons(3, 200, 1.0, rounds=8)) <= 14


def test_shapes_count_alike_whatever_they_take():
    short, long = [1.0] * 10, [1000.0] * 10
    ratio = paired_ratio([short, long], [[0.5] * 10, [2000.0] * 10])
    assert ratio.estimate == pytest.approx(1.0)
    ratio = paired_ratio([short, long], [[0.5] * 10, [500.0] * 10])
    luck = math.exp(LUCK)
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((2.0, 2 / luck, 2 * luck))
    assert ratio.word == "faster"


def test_rounds_that_count_though_they_were_disturbed_say_half_as_much():
    a, b = np.exp(np.random.default_rng(8).normal(0, 0.03, (2, 20))).tolist()
    one, two = paired_ratio([a], [b]), paired_ratio([a], [b], disturbed=True)
    assert two.estimate == one.estimate
    alone, doubled = (math.sqrt((math.log(r.high / r.low) / 2) ** 2 - LUCK**2) for r in (one, two))
    assert doubled == pytest.approx(2 * alone)


def test_a_hundredth_is_no_difference_however_often_it_is_measured():
    assert paired_ratio([[1.01] * 50], [[1.0] * 50]).word == "no difference shown"
    assert paired_ratio([[1.03] * 50], [[1.0] * 50]).word == "faster"


def test_too_few_pairs_say_nothing():
    ratio = paired_ratio([[2.0] * (LEAST - 1)], [[1.0] * (LEAST - 1)])
    assert (ratio.estimate, ratio.low, ratio.high, ratio.word) == (2.0, 0.0, math.inf, "no difference shown")
    assert paired_ratio([[2.0] * LEAST], [[1.0] * LEAST]).word == "faster"


def test_the_same_samples_give_the_same_interval():
    a, b = np.exp(np.random.default_rng(4).normal(0, 0.03, (2, 12))).tolist()
    assert paired_ratio([a], [b]) == paired_ratio([a], [b])


def test_the_same_machine_gives_the_same_verdict():
    one, two = (compared(np.random.default_rng(5), 1.02, 0.3) for _ in range(2))
    assert one == two


def test_drift_is_the_end_against_the_start():
    assert drift([1.0] * 5 + [1.5] * 5 + [2.0] * 5) == 2.0
    assert drift([1.0, 2.0]) == 1.0
