"""Runs side by side and over time: ratios by closed form, verdicts no stronger than the intervals."""

from __future__ import annotations

import numpy as np
import pytest

from headstock.benchmarks.results.records import Measurement, Run
from headstock.benchmarks.results.views import compare, history


def one(subject, value, *, workload="w", metric="time", better="lower", samples=()):
    return Measurement(
        subject=subject, workload=workload, metric=metric, unit="us", value=value, better=better, samples=samples
    )


def run(day, *measurements, cpu="a"):
    when = f"2026-01-{day:02}T00:00:00+00:00"
    return Run.of(kind="k", source="headstock", when=when, machine={"cpu": cpu}, measurements=measurements)


def test_ratios_say_how_many_times_better_than_the_first():
    found = compare([run(1, one("a", 10), one("b", 5)), run(2, one("a", 20))])
    assert [c.subject for c in found.columns] == ["a", "b", "a"]
    (line,) = found.lines
    assert line.values == (10, 5, 20)
    assert line.ratios == (1, 2, 0.5)
    assert not found.workloads_differ


def test_what_is_better_when_higher_is_turned_round():
    (line,) = compare([run(1, one("a", 10, better="higher"), one("b", 20, better="higher"))]).lines
    assert line.ratios == (1, 2)


def test_patterns_choose_lines_and_gaps_stay_open():
    runs = [run(1, one("a", 1, workload="x"), one("a", 1, workload="y")), run(2, one("b", 4, workload="x"))]
    assert [line.workload for line in compare(runs).lines] == ["x", "y"]
    assert compare(runs).lines[1].values == (1, None)
    assert [line.workload for line in compare(runs, workload="x").lines] == ["x"]
    assert compare(runs, metric="energy").lines == ()


def test_runs_that_share_no_workload_are_matched_by_metric_and_it_is_said():
    found = compare([run(1, one("vllm", 10, workload="serve p")), run(2, one("sglang", 5, workload="serve q"))])
    assert found.workloads_differ
    assert [line.ratios for line in found.lines] == [(1, 2)]


def test_other_machines_are_said():
    assert compare([run(1, one("a", 1)), run(2, one("a", 1), cpu="b")]).machines_differ
    assert not compare([run(1, one("a", 1)), run(2, one("a", 1))]).machines_differ


def steady(value):
    return one("a", value, samples=tuple(value + d for d in (-0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2)))


def test_a_point_is_worse_only_beyond_what_was_before():
    days = [10.0, 10.05, 9.95, 10.1, 12.0, 12.0, 8.0]
    (series,) = history([run(day, steady(value)) for day, value in enumerate(days, 1)], "a")
    assert [p.verdict for p in series.points] == ["", "", "", "", "worse", "worse", "better"]
    assert series.points[0].ratio is None
    assert series.points[4].ratio == 10.025 / 12


def test_a_change_stays_until_it_is_what_most_runs_before_are():
    days = [10.0, 10.05, 9.95, 10.1, 10.0, *[12.0] * 9]
    (series,) = history([run(day, steady(value)) for day, value in enumerate(days, 1)], "a")
    verdicts = [p.verdict for p in series.points]
    assert verdicts[:5] == [""] * 5
    assert verdicts[5:9] == ["worse"] * 4
    assert verdicts[-3:] == [""] * 3


def simulated(rng, count, between, *, last=1.0):
    """`count` runs of 16 samples with 3 % noise, on days that differ by `between`; the last takes `last` times as
    long."""
    runs: list[Run] = []
    for day in range(1, count + 1):
        level = 10 * np.exp(rng.normal(0, between)) * (last if day == count else 1.0)
        samples = tuple(float(x) for x in level * np.exp(rng.normal(0, 0.03, 16)))
        runs.append(run(day, one("a", float(np.median(samples)), samples=samples)))
    return runs


@pytest.mark.parametrize(("between", "found"), [(0.0, 0.98), (0.01, 0.95), (0.02, 0.66)])
def test_a_regression_of_10_percent_shows_and_noise_does_not(between, found):
    rng = np.random.default_rng(0)
    steadies = [history(simulated(rng, 12, between), "a")[0].points for _ in range(100)]
    assert sum(p.verdict == "worse" for points in steadies for p in points) <= 100 * 11 / 200
    worse = [history(simulated(rng, 12, between, last=1.1), "a")[0].points[-1] for _ in range(200)]
    assert sum(p.verdict == "worse" for p in worse) >= found * 200


def test_without_samples_there_is_no_verdict():
    (series,) = history([run(1, one("a", 10)), run(2, one("a", 100))], "a")
    assert [p.verdict for p in series.points] == ["", ""]


def test_machines_and_workloads_are_series_of_their_own():
    runs = [run(1, one("a", 1), one("a", 1, workload="v")), run(2, one("a", 1), cpu="b"), run(3, one("other", 1))]
    assert len(history(runs, "a")) == 3
    assert len(history(runs, "a", workload="v")) == 1
