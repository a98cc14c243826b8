"""Verdicts over simulated machines: how often two equal arms are called different, and a true difference is missed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headstock.benchmarks.ab.verdicts import LEAST, ROUNDS, drift, paired_ratio


def simulated(rng: np.random.Generator, rounds: int, effect: float) -> tuple[list[float], list[float]]:
    """Times of two arms in turns: 3 % noise each, a machine that wanders and swings, and one turn in twenty that
    something else delays by some 40 %. The second arm takes `effect` times as long."""
    turns = 2 * rounds
    wandering = np.cumsum(rng.normal(0, 0.01, turns)) + 0.1 * np.sin(np.arange(turns) / 7)
    delayed = np.where(rng.random(turns) < 0.05, rng.exponential(0.4, turns), 0.0)
    logs = wandering + rng.normal(0, 0.03, turns) + delayed
    order = np.arange(turns).reshape(rounds, 2)
    order[1::2] = order[1::2, ::-1]  # who is first changes from round to round
    return list(np.exp(logs[order[:, 0]])), list(np.exp(logs[order[:, 1]]) * effect)


def test_two_equal_arms_are_called_different_in_at_most_7_of_100_comparisons():
    rng = np.random.default_rng(1)
    ratios = [paired_ratio([a], [b]) for a, b in (simulated(rng, ROUNDS, 1.0) for _ in range(1000))]
    false = sum(ratio.word != "no difference shown" for ratio in ratios)
    assert false <= 70


@pytest.mark.parametrize(("effect", "word"), [(1.05, "slower"), (1 / 1.05, "faster")])
def test_a_difference_of_5_percent_is_missed_in_at_most_1_of_20(effect, word):
    rng = np.random.default_rng(2)
    ratios = [paired_ratio([a], [b]) for a, b in (simulated(rng, ROUNDS, effect) for _ in range(500))]
    assert sum(ratio.word != word for ratio in ratios) <= 25
    inside = sum(ratio.low <= 1 / effect <= ratio.high for ratio in ratios)
    assert inside >= 0.93 * len(ratios)  # the interval holds the truth as often as it says


def test_few_rounds_do_not_loosen_it():
    rng = np.random.default_rng(3)
    ratios = [paired_ratio([a], [b]) for a, b in (simulated(rng, 8, 1.0) for _ in range(500))]
    assert sum(ratio.word != "no difference shown" for ratio in ratios) <= 35


def test_shapes_count_alike_whatever_they_take():
    short, long = [1.0] * 10, [1000.0] * 10
    ratio = paired_ratio([short, long], [[0.5] * 10, [2000.0] * 10])
    assert ratio.estimate == pytest.approx(1.0)
    ratio = paired_ratio([short, long], [[0.5] * 10, [500.0] * 10])
    assert (ratio.estimate, ratio.low, ratio.high, ratio.word) == (2.0, 2.0, 2.0, "faster")


def test_too_few_pairs_say_nothing():
    ratio = paired_ratio([[2.0] * (LEAST - 1)], [[1.0] * (LEAST - 1)])
    assert (ratio.estimate, ratio.low, ratio.high, ratio.word) == (2.0, 0.0, math.inf, "no difference shown")
    assert paired_ratio([[2.0] * LEAST], [[1.0] * LEAST]).word == "faster"


def test_the_same_samples_give_the_same_interval():
    a, b = simulated(np.random.default_rng(4), 12, 1.02)
    assert paired_ratio([a], [b]) == paired_ratio([a], [b])


def test_drift_is_the_end_against_the_start():
    assert drift([1.0] * 5 + [1.5] * 5 + [2.0] * 5) == 2.0
    assert drift([1.0, 2.0]) == 1.0
