"""Times of tokens to numbers, in closed form."""

from __future__ import annotations

import pytest

from headstock.benchmarks.engine.metrics import METRICS, Timeline, metrics_of


def times(*token_times, prompt=10):
    return Timeline(num_prompt_tokens=prompt, token_times=token_times)


def test_a_request_has_a_first_token_gaps_and_an_end():
    one = times(1.0, 1.5, 2.5)
    assert (one.ttft, one.e2el, one.tpot, one.itl) == (1.0, 2.5, 0.75, (0.5, 1.0))


def test_a_single_token_has_no_time_a_token():
    one = times(2.0)
    assert (one.ttft, one.e2el, one.tpot, one.itl) == (2.0, 2.0, None, ())


def test_throughputs_are_over_the_time_to_the_last_token():
    found = metrics_of([times(1.0, 2.0, prompt=6), times(1.0, 1.5, 3.0, 4.0, prompt=8)], 4.0)
    assert (found["output_throughput"], found["total_token_throughput"], found["request_throughput"]) == (1.5, 5.0, 0.5)


def test_percentiles_interpolate_and_gaps_of_all_requests_are_pooled():
    found = metrics_of([times(1.0, 1.5, 2.5), times(2.0, 2.25)], 2.5)
    assert found["ttft_median"] == 1500
    assert found["ttft_p99"] == pytest.approx(1990)  # 1 s and 99 % of the way to 2 s
    assert found["tpot_median"] == pytest.approx(500)  # of 750 and 250
    assert found["itl_median"] == 500  # of 250, 500 and 1000
    assert found["itl_p90"] == pytest.approx(900)
    assert found["e2el_median"] == pytest.approx(2375)


def test_requests_of_one_token_leave_out_what_they_do_not_have():
    found = metrics_of([times(1.0), times(3.0)], 3.0)
    assert found["ttft_median"] == found["e2el_median"] == 2000
    assert not [name for name in found if name.startswith(("tpot", "itl"))]
    assert set(found) < set(METRICS)


def test_they_agree_with_the_formulas_of_vllm_bench_serve():
    """`vllm bench serve` computes (latency - ttft) / (output_len - 1), and pools the gaps it was sent."""
    import numpy as np

    rng = np.random.default_rng(0)
    lines = [times(*np.cumsum(rng.exponential(0.1, size=n)).tolist()) for n in rng.integers(2, 30, size=20)]
    found = metrics_of(lines, 10.0)
    tpots = [(t.token_times[-1] - t.token_times[0]) / (len(t.token_times) - 1) for t in lines]
    gaps = np.concatenate([np.diff(t.token_times) for t in lines])
    for point, percent in (("median", 50), ("p90", 90), ("p99", 99)):
        assert found[f"tpot_{point}"] == pytest.approx(1e3 * np.percentile(tpots, percent))
        assert found[f"itl_{point}"] == pytest.approx(1e3 * np.percentile(gaps, percent))
