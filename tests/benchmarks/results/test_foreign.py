"""Other engines' own results: each of the forms that vLLM and SGLang write."""

from __future__ import annotations

import pytest

from headstock.benchmarks.results.foreign import read_foreign

VLLM_SERVE = {
    "date": "20260131-120000",
    "backend": "vllm",
    "model_id": "meta/llama",
    "num_prompts": 10,
    "request_rate": "inf",
    "max_concurrency": 4,
    "duration": 2.0,
    "completed": 10,
    "total_input_tokens": 1000,
    "total_output_tokens": 500,
    "request_throughput": 5.0,
    "output_throughput": 250.0,
    "total_token_throughput": 750.0,
    "mean_ttft_ms": 12.0,
    "median_ttft_ms": 11.0,
    "p99_ttft_ms": 20.0,
    "median_e2el_ms": 200.0,
    "ttfts": [0.01],
}
VLLM_THROUGHPUT = {"elapsed_time": 2.0, "num_requests": 4, "requests_per_second": 2.0, "tokens_per_second": 300.0}
VLLM_LATENCY = {"avg_latency": 0.5, "latencies": [0.4, 0.6], "percentiles": {"50": 0.5}}
SGLANG_SERVE = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "completed": 10,
    "request_throughput": 4.0,
    "output_throughput": 200.0,
    "total_throughput": 600.0,
    "mean_e2e_latency_ms": 210.0,
    "median_ttft_ms": 14.0,
    "accept_length": None,
}
SGLANG_BATCH = {
    "run_name": "default",
    "batch_size": 1,
    "input_len": 128,
    "output_len": 8,
    "prefill_latency": 0.02,
    "prefill_throughput": 6400.0,
    "median_decode_latency": 0.01,
    "overall_throughput": 900.0,
}


def numbers(document):
    run = read_foreign(document)
    assert run is not None
    return run, {m.metric: (m.value, m.unit, m.better) for m in run.measurements}


def test_vllm_serve():
    run, found = numbers(VLLM_SERVE)
    assert (run.kind, run.source, run.subjects) == ("serve", "vllm", ("vllm",))
    assert run.when.startswith("2026-01-31T") or run.when.startswith("2026-02-01T")
    assert found["ttft_median"] == (11.0, "ms", "lower")
    assert found["ttft_p99"] == (20.0, "ms", "lower")
    assert found["e2el_median"] == (200.0, "ms", "lower")
    assert found["total_token_throughput"] == (750.0, "tokens/s", "higher")
    assert "max_concurrency=4" in run.measurements[0].workload


def test_vllm_throughput_and_latency():
    run, found = numbers(VLLM_THROUGHPUT)
    assert run.kind == "throughput"
    assert found["total_token_throughput"] == (300.0, "tokens/s", "higher")
    run, found = numbers(VLLM_LATENCY)
    assert run.kind == "latency"
    assert found["avg_latency"] == (0.5, "s", "lower")
    assert run.measurements[0].samples == (0.4, 0.6)


def test_sglang_serve_has_the_same_names():
    run, found = numbers(SGLANG_SERVE)
    assert (run.kind, run.source) == ("serve", "sglang")
    assert found["e2el_mean"] == (210.0, "ms", "lower")
    assert found["ttft_median"] == (14.0, "ms", "lower")
    assert found["total_token_throughput"] == (600.0, "tokens/s", "higher")


def test_sglang_one_batch():
    run, found = numbers(SGLANG_BATCH)
    assert (run.kind, run.source) == ("latency", "sglang")
    assert found["prefill_latency"] == (0.02, "s", "lower")
    assert found["total_token_throughput"] == (900.0, "tokens/s", "higher")


def test_a_run_without_a_date_is_the_same_when_read_twice():
    first, second = read_foreign(SGLANG_SERVE), read_foreign(SGLANG_SERVE)
    assert first is not None
    assert second is not None
    assert (first.id, first.measurements) == (second.id, second.measurements)


@pytest.mark.parametrize(
    "document", [{}, {"a": 1}, {"model_id": "x"}, {"backend": "vllm", "median_ttft_ms": float("nan")}]
)
def test_what_is_no_result_is_none(document):
    assert read_foreign(document) is None
