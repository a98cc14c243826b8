"""Rounds favour nobody, and disturbed ones are left out."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import pairwise

import pytest

from headstock.benchmarks.interleave import Pace, balanced_orders, interleave, schedule, timed_calls


@pytest.mark.parametrize("count", range(1, 8))
def test_everybody_is_equally_often_at_each_place(count):
    orders = balanced_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    for place in range(count):
        assert set(Counter(order[place] for order in orders).values()) == {len(orders) // count}


@pytest.mark.parametrize("count", range(2, 8))
def test_everybody_is_equally_often_right_behind_each_other(count):
    behind = Counter(pair for order in balanced_orders(count) for pair in pairwise(order))
    assert len(behind) == count * (count - 1)
    assert len(set(behind.values())) == 1


def test_equal_quotas_give_the_balanced_orders_over_and_over():
    rounds = list(schedule({"a": 8, "b": 8, "c": 8, "d": 8}))
    names = [["abcd"[i] for i in order] for order in balanced_orders(4)]
    assert rounds == names * 2


@pytest.mark.parametrize("quotas", [{"a": 15, "b": 3, "c": 6}, {"a": 1, "b": 1}, {"a": 16, "b": 5, "c": 16, "d": 7}])
def test_everybody_has_just_their_quota_of_turns(quotas):
    turns = Counter(name for order in schedule(quotas) for name in order)
    assert turns == quotas


def test_who_has_few_turns_has_them_beside_all_who_have_more_and_not_all_at_once():
    rounds = list(schedule({"often": 16, "half": 8, "seldom": 4}))
    seldom = [number for number, order in enumerate(rounds) if "seldom" in order]
    assert seldom == [0, 4, 8, 12]
    assert all(set(rounds[number]) == {"often", "half", "seldom"} for number in seldom)


@pytest.mark.parametrize(
    ("seconds", "pace"),
    [
        (1e-5, Pace(calls=50, rounds=16, warm=True)),
        (0.001, Pace(calls=15, rounds=16, warm=True)),
        (0.1, Pace(calls=1, rounds=10, warm=False)),
        (0.4, Pace(calls=1, rounds=6, warm=False)),
        (1.9, Pace(calls=1, rounds=3, warm=False)),
    ],
)
def test_the_pace_fills_the_budget_with_whole_calls(seconds, pace):
    assert Pace.of(seconds, budget=1.0, rounds=16) == pace


class Scripted:
    """A contender whose turns take what a list says."""

    def __init__(self, name, log, seconds):
        self.name, self.log, self.seconds = name, log, iter(seconds)

    def turn(self, calls, warm):
        self.log.append((self.name, calls, warm, gc.isenabled()))
        return [next(self.seconds) for _ in range(calls)]


class Meter:
    """Says after each round whether others were busy, as told."""

    average = 0.5

    def __init__(self, verdicts):
        self.verdicts = iter(verdicts)

    def start(self):
        pass

    def lap(self, *, final=False):
        return next(self.verdicts, None)


def test_a_turn_counts_by_its_median_call_and_no_garbage_is_collected_in_it():
    log = []
    a, b = Scripted("a", log, [1.0, 9.0, 2.0, 3.0, 3.0, 8.0]), Scripted("b", log, [5.0, 6.0])
    paces = {"a": Pace(calls=3, rounds=2, warm=True), "b": Pace(calls=1, rounds=2, warm=False)}
    samples = interleave({"a": a, "b": b}, paces, Meter([]))
    assert samples.seconds == {"a": {0: 2.0, 1: 3.0}, "b": {0: 5.0, 1: 6.0}}
    assert log == [("a", 3, True, False), ("b", 1, False, False), ("b", 1, False, False), ("a", 3, True, False)]
    assert gc.isenabled()


def test_rounds_in_which_others_were_busy_are_left_out():
    """A verdict is about all rounds since the one before it."""
    contender = Scripted("a", [], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    meter = Meter([None, False, None, True, False, False])
    samples = interleave({"a": contender}, {"a": Pace(calls=1, rounds=6, warm=False)}, meter)
    assert samples.disturbed == {2, 3}
    assert samples.seconds == {"a": {0: 1.0, 1: 2.0, 4: 5.0, 5: 6.0}}
    assert (samples.rounds, samples.kept_disturbed, samples.other_load) == (6, False, 0.5)


@pytest.mark.parametrize(("spare", "rounds"), [(0, 4), (1, 5), (2, 6), (9, 7)])
def test_disturbed_rounds_are_made_up_for_as_long_as_there_are_spare_ones(spare, rounds):
    """The third of the four is disturbed, and so are the two that come in its place."""
    contender = Scripted("a", [], [float(n) for n in range(1, 20)])
    meter = Meter([False, False, True, False, True, True, False])
    samples = interleave({"a": contender}, {"a": Pace(calls=1, rounds=4, warm=False)}, meter, spare=spare)
    assert samples.rounds == rounds
    assert len(samples.seconds["a"]) == rounds - len(samples.disturbed)


def test_where_too_few_would_remain_all_count_and_that_is_said():
    contender = Scripted("a", [], [1.0, 2.0, 3.0, 4.0])
    samples = interleave(
        {"a": contender}, {"a": Pace(calls=1, rounds=4, warm=False)}, Meter([True, True, False, False])
    )
    assert samples.kept_disturbed
    assert len(samples.seconds["a"]) == 4
    assert samples.disturbed == {0, 1}


def test_an_uncounted_call_comes_before_the_timed_ones():
    calls = []
    assert len(timed_calls(lambda: calls.append(1), 3, warm=True)) == 3
    assert len(calls) == 4
    assert min(timed_calls(lambda: calls.append(1), 2, warm=False)) > 0
    assert len(calls) == 6
