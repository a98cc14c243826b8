"""Results of other engines' own benchmarks: vLLM's ``bench`` and SGLang's ``bench_*`` as they write them.

The metrics have one name whoever measured them; both projects define TTFT, TPOT, ITL and E2E alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from .records import Better, Measurement, Run

Document = Mapping[str, Any]
_LATENCY = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_RATES = {
    "request_throughput": "requests/s",
    "request_goodput": "requests/s",
    "output_throughput": "tokens/s",
    "input_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "total_throughput": "tokens/s",
    "requests_per_second": "requests/s",
    "tokens_per_second": "tokens/s",
    "prefill_throughput": "tokens/s",
    "median_decode_throughput": "tokens/s",
    "overall_throughput": "tokens/s",
}
"""Higher is better."""
_ALIASES = {
    "e2e_latency": "e2el",
    "total_throughput": "total_token_throughput",
    "overall_throughput": "total_token_throughput",
    "tokens_per_second": "total_token_throughput",
    "requests_per_second": "request_throughput",
}
_SECONDS = {"prefill_latency": "s", "median_decode_latency": "s", "avg_latency": "s"}
"""Lower is better."""
_WORKLOAD = (
    "dataset_name",
    "num_prompts",
    "completed",
    "request_rate",
    "max_concurrency",
    "random_input_len",
    "random_output_len",
    "batch_size",
    "input_len",
    "output_len",
    "num_requests",
    "total_input_tokens",
    "total_output_tokens",
)


def read_foreign(document: Document) -> Run | None:
    """The run in one JSON object of vLLM or SGLang; None where it is neither."""
    source = _source(document)
    if source is None:
        return None
    measurements = tuple(_measurements(document, source))
    if not measurements:
        return None
    versions = {source: str(v)} if (v := document.get(f"{source}_version") or document.get("version")) else {}
    fields: dict[str, Any] = {"source": source, "versions": versions, "measurements": measurements}
    when = _when(document)
    if when is None:
        return Run.undated(document, kind=_kind(document), **fields)
    return Run.of(kind=_kind(document), when=when, **fields)


def _source(document: Document) -> str | None:
    """SGLang writes ``mean_e2e_latency_ms`` and names runs; vLLM ``e2el`` and model ids."""
    sglang = ("mean_e2e_latency_ms", "median_e2e_latency_ms", "run_name", "total_output_tokens_retokenized")
    if any(name in document for name in sglang) or "successful_requests" in document:
        return "sglang"
    vllm = ("total_token_throughput", "model_id", "tokens_per_second", "avg_latency")
    return "vllm" if any(name in document for name in vllm) else None


def _kind(document: Document) -> str:
    if "mean_ttft_ms" in document or "median_ttft_ms" in document:
        return "serve"
    return "latency" if "avg_latency" in document or "run_name" in document else "throughput"


def _measurements(document: Document, source: str) -> Iterator[Measurement]:
    backend = document.get("backend")
    subject = source if backend in (None, source, "openai", "openai-chat") else f"{source} ({backend})"
    workload = _workload(document)

    def one(metric: str, unit: str, better: Better, value: Any, samples: tuple[float, ...] = ()) -> Measurement:
        return Measurement(
            subject=subject,
            workload=workload,
            metric=metric,
            unit=unit,
            value=float(value),
            better=better,
            samples=samples,
        )

    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            continue
        if match := _LATENCY.fullmatch(name):
            yield one(f"{_ALIASES.get(match[2], match[2])}_{match[1]}", "ms", "lower", value)
        elif name in _RATES:
            yield one(_ALIASES.get(name, name), _RATES[name], "higher", value)
        elif name in _SECONDS:
            samples = document.get("latencies", ()) if name == "avg_latency" else ()
            yield one(name, _SECONDS[name], "lower", value, tuple(map(float, samples)))


def _workload(document: Document) -> str:
    model = document.get("model_id") or document.get("model") or ""
    sizes = [f"{name}={document[name]}" for name in _WORKLOAD if document.get(name) is not None]
    return " ".join([_kind(document), *([str(model)] if model else []), *sizes])


def _when(document: Document) -> str | None:
    """None where it does not say. vLLM's ``date`` is local time without a zone, e.g. 20260131-235959."""
    try:
        return datetime.strptime(str(document["date"]), "%Y%m%d-%H%M%S").astimezone(UTC).isoformat(timespec="seconds")
    except (KeyError, ValueError):
        return None
