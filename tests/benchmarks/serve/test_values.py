"""Arrivals, promises and reports, in closed form."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from headstock.benchmarks.engine.metrics import Timeline
from headstock.benchmarks.machine import describe
from headstock.benchmarks.serve.arrivals import Arrivals
from headstock.benchmarks.serve.client import Outcome
from headstock.benchmarks.serve.goodput import goodput, read_promises
from headstock.benchmarks.serve.report import Report, table
from headstock.core.errors import InvalidInput
from headstock.selector import find_device


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_spread_of_their_distribution(burstiness: float) -> None:
    """A gamma distribution of shape k and mean 1/rate has the variance 1/(k·rate²)."""
    offsets = Arrivals(request_rate=5.0, burstiness=burstiness).offsets(40_000, seed=1)
    gaps = [b - a for a, b in zip([0.0, *offsets], offsets, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.pvariance(gaps) == pytest.approx(0.04 / burstiness, rel=0.12)
    assert offsets == sorted(offsets)


def test_a_seed_repeats_arrivals_and_an_infinite_rate_sends_all_at_once() -> None:
    arrivals = Arrivals(request_rate=5.0)
    assert arrivals.offsets(9, 1) == arrivals.offsets(9, 1) != arrivals.offsets(9, 2)
    assert Arrivals().offsets(3, 1) == [0.0] * 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_rate", 0),
        ("request_rate", -1),
        ("request_rate", float("nan")),
        ("burstiness", 0),
        ("burstiness", float("inf")),
    ],
)
def test_rates_that_make_no_sense_are_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        Arrivals(**{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "itl:5", ":5", ""])
def test_promises_that_cannot_be_read_are_refused(word: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_promises([word])
    assert refused.value.field == "goodput"


def timeline(*times: float, tokens: int | None = None) -> Timeline:
    return Timeline(num_prompt_tokens=4, token_times=times, num_tokens=tokens)


def test_goodput_counts_requests_that_keep_every_promise() -> None:
    promises = read_promises(["ttft:500", "tpot:100"])
    kept = timeline(0.5, 0.6, 0.7)
    late, slow, single = timeline(0.51, 0.6), timeline(0.1, 0.3), timeline(0.4)
    assert goodput([kept, late, slow, single], promises, 4.0) == 2 / 4.0


def test_tokens_are_counted_by_the_usage_and_gaps_by_the_pieces() -> None:
    one = timeline(1.0, 2.0, 3.0, tokens=5)
    assert (one.count, one.tpot, one.itl) == (5, 0.5, (1.0, 1.0))


@pytest.fixture
def report() -> Report:
    outcomes = (
        Outcome(sent=0.0, timeline=timeline(1.0, 2.0)),
        Outcome(sent=1.5, timeline=timeline(0.5, 1.5), num_cached_tokens=3),
        Outcome(sent=5.0, timeline=timeline(1.0)),
        Outcome(sent=5.0, error="status 500: no luck"),
        Outcome(sent=5.0, error="status 500: no luck"),
    )
    return Report(
        command="headstock bench serve",
        base_url="http://x",
        model="m",
        chat=False,
        workload="w",
        arrivals="all at once",
        max_concurrency=None,
        elapsed=6.0,
        outcomes=outcomes,
        promises={"ttft": 600.0},
        client=describe(find_device("cpu")),
    )


def test_a_report_counts_what_was_answered_and_what_was_not(report: Report) -> None:
    document = report.to_dict()
    assert (document["num_requests"], document["num_answered"], document["num_output_tokens"]) == (5, 3, 5)
    assert document["errors"] == {"status 500: no luck": 2}
    assert document["peak_concurrency"] == 2
    assert document["num_cached_tokens"] == 3
    assert document["metrics"]["output_throughput"] == {"unit": "tokens/s", "value": 5 / 6}
    assert document["goodput"] == {"promises_ms": {"ttft": 600.0}, "value": 1 / 6}


def test_the_table_has_a_line_a_metric(report: Report) -> None:
    columns, rows = table(report)
    assert columns == ["", "median", "p90", "p99"]
    shown = {row[0]: row[1] for row in rows}
    assert (shown["TTFT ms"], shown["output tokens/s"]) == ("1,000", "0.833")
    assert shown["goodput, requests/s (ttft ≤ 600 ms)"] == "0.167"
