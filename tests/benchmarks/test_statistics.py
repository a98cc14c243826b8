"""Medians, spreads, intervals and ratios against values computed by hand."""

from __future__ import annotations

import pytest

from headstock.benchmarks.statistics import Interval, median_interval, paired_ratio, spread


@pytest.mark.parametrize(
    ("count", "low", "high", "coverage"),
    [
        (1, 1, 1, 0.0),
        (2, 1, 2, 1 - 2 / 4),
        (3, 1, 3, 1 - 2 / 8),
        (5, 1, 5, 1 - 2 / 32),
        (6, 1, 6, 1 - 2 / 64),
        (8, 1, 8, 1 - 2 / 256),
        (9, 2, 8, 1 - 2 * (1 + 9) / 512),
        (21, 6, 16, 1 - 2 * (1 + 21 + 210 + 1330 + 5985 + 20349) / 2**21),
    ],
)
def test_an_interval_is_bounded_by_order_statistics_of_the_binomial(count, low, high, coverage):
    interval = median_interval([float(n) for n in range(count, 0, -1)])
    assert (interval.low, interval.high) == (low, high)
    assert interval.coverage == pytest.approx(coverage)


def test_the_median_lies_between_two_where_the_count_is_even():
    assert median_interval([4.0, 1.0, 3.0, 2.0]).median == 2.5


@pytest.mark.parametrize(
    ("values", "expected"), [([7.0], 0.0), ([1.0, 2.0, 3.0, 4.0, 5.0], 2 / 3), ([10.0, 10.0, 10.0, 90.0], 20 / 10)]
)
def test_the_spread_is_the_middle_half_over_the_median(values, expected):
    assert spread(values) == pytest.approx(expected)


def test_a_ratio_is_paired_by_round():
    ratio = paired_ratio({0: 2.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 2.0, 5: 1.0})
    assert ratio == Interval(median=2.0, low=2.0, high=2.0, coverage=0.5)


def test_drift_that_both_saw_falls_out_of_a_ratio():
    drift = {number: 1.0 + number for number in range(7)}
    ratio = paired_ratio({n: 3.0 * d for n, d in drift.items()}, drift)
    assert ratio is not None
    assert (ratio.low, ratio.high) == (3.0, 3.0)


def test_without_a_common_round_there_is_no_ratio():
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
