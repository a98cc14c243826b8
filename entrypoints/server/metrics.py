"""Prometheus metrics under the names that vLLM's users have on their boards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...core.engine import EngineInfo, IterationStats
from ...core.engine.observer import FinishedCompletion
from ...core.scheduler import SchedulerStats

LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
TOKEN_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
REQUEST_LATENCY = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
LABELS = ("model_name", "engine")
REASONS = ("stop", "length", "abort", "error")


class EngineCollector(Collector):
    """What the engine counts itself, as of the last look at it."""

    def __init__(self, prefix: str, labels: Sequence[str]) -> None:
        self._prefix, self._values = prefix, labels
        self.stats: SchedulerStats | None = None
        self.info: EngineInfo | None = None
        self.alive = True

    def collect(self) -> Iterator[Metric]:
        if (info := self.info) is not None:
            yield self._info(info)
        yield self._gauge("engine_alive", "1 while the engine answers.", float(self.alive))
        if (stats := self.stats) is None:
            return
        cache = stats.prefix_cache
        yield self._gauge("num_requests_running", "Requests in the running batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait for a place in it.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "KV blocks in use; 1 is all.", stats.kv_usage)
        yield self._counter("num_preemptions", "Requests that lost their blocks.", stats.num_preemptions)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", cache.num_query_tokens)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", cache.num_hit_tokens)
        yield self._lost_tokens(cache.num_lost_tokens)
        yield self._counter("engine_steps", "Steps that computed something.", stats.num_steps)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=LABELS)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=LABELS)
        family.add_metric(self._values, value)
        return family

    def _lost_tokens(self, tokens: Sequence[int]) -> Metric:
        text = "Prompt tokens computed though other KV groups had them cached, by the group that had not."
        family = CounterMetricFamily(f"{self._prefix}:prefix_cache_lost_tokens", text, labels=(*LABELS, "kv_group"))
        for group, count in enumerate(tokens):
            family.add_metric((*self._values, str(group)), count)
        return family

    def _info(self, info: EngineInfo) -> Metric:
        facts = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "max_model_len": str(info.max_model_len),
            "dtype": info.dtype,
            "num_engines": str(info.num_engines),
            "version": info.version,
        }
        family = GaugeMetricFamily(f"{self._prefix}:cache_config_info", "Sizes.", labels=(*LABELS, *facts))
        family.add_metric((*self._values, *facts.values()), 1)
        return family


class Metrics:
    """An `Observer` of the engine's front end, and of the HTTP requests. Everything is per server, not per process."""

    def __init__(self, prefix: str, model_name: str) -> None:
        self._registry = CollectorRegistry()
        values = (model_name, "0")
        self.engine = EngineCollector(prefix, values)
        self._registry.register(self.engine)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{prefix}:{name}", text, (*LABELS, *labels), registry=self._registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(f"{prefix}:{name}", text, LABELS, buckets=buckets, registry=self._registry)
            return made.labels(*values)

        sizes = _sizes(2**20)
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts computed or found.").labels(*values)
        self._generated = counter("generation_tokens", "New tokens.").labels(*values)
        self._step_tokens = histogram("iteration_tokens_total", "Tokens a step brought.", _sizes(2**14))
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", LATENCY)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of one answer.", TOKEN_LATENCY)
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean of an answer, the first token left out.", TOKEN_LATENCY
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_LATENCY)
        self._queue = histogram("request_queue_time_seconds", "Arrival to first step.", REQUEST_LATENCY)
        self._prefill = histogram("request_prefill_time_seconds", "First step to first token.", REQUEST_LATENCY)
        self._decode = histogram("request_decode_time_seconds", "First to last token.", REQUEST_LATENCY)
        self._inference = histogram("request_inference_time_seconds", "First step to last token.", REQUEST_LATENCY)
        self._prompt_size = histogram("request_prompt_tokens", "Tokens a prompt.", sizes)
        self._answer_size = histogram("request_generation_tokens", "Tokens an answer.", sizes)
        self._max_tokens = histogram("request_params_max_tokens", "Most tokens, as asked.", sizes)
        ends = counter("request_success", "Answers by the reason of their end.", "finished_reason")
        self._ends = {reason: ends.labels(*values, reason) for reason in REASONS}
        self._http = Counter(
            "http_requests", "HTTP requests.", ("handler", "method", "status"), registry=self._registry
        )

    def observe(self, stats: IterationStats) -> None:
        if stats.num_prompt_tokens:
            self._prompt_tokens.inc(stats.num_prompt_tokens)
        if stats.num_generation_tokens:
            self._generated.inc(stats.num_generation_tokens)
            self._step_tokens.observe(stats.num_generation_tokens + stats.num_prompt_tokens)
        for seconds in stats.first_token_latencies:
            self._ttft.observe(seconds)
        for seconds in stats.inter_token_latencies:
            self._itl.observe(seconds)
        for completion in stats.finished:
            self._finished(completion)

    def count_http(self, handler: str, method: str, status: int) -> None:
        """One HTTP request. `handler` and `method` are ours, not the client's words."""
        self._http.labels(handler, method, f"{status // 100}xx").inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _finished(self, completion: FinishedCompletion) -> None:
        times = completion.metrics
        self._ends[completion.finish_reason].inc()
        self._prompt_size.observe(completion.num_prompt_tokens)
        self._answer_size.observe(completion.num_tokens)
        if completion.max_tokens is not None:
            self._max_tokens.observe(completion.max_tokens)
        start, first, last = times.first_scheduled_time, times.first_token_time, times.last_token_time
        if start is None or first is None or last is None:
            return
        self._e2e.observe(last - times.arrival_time)
        self._queue.observe(max(0.0, start - times.arrival_time))
        self._prefill.observe(max(0.0, first - start))
        self._decode.observe(last - first)
        self._inference.observe(max(0.0, last - start))
        if completion.num_tokens > 1:
            self._tpot.observe((last - first) / (completion.num_tokens - 1))


def _sizes(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50…"""
    found: list[float] = []
    power = 1
    while power <= most:
        found += [digit * power for digit in (1, 2, 5) if digit * power <= most]
        power *= 10
    return found
