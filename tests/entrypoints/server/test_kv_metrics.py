"""What the metrics say about the prefix cache of a model with several KV groups."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from headstock.core.kv import PrefixCacheStats
from headstock.core.scheduler import SchedulerStats
from headstock.entrypoints.server.metrics import EngineCollector


def text_of(cache: PrefixCacheStats) -> list[str]:
    collector = EngineCollector("vllm", ("tiny", "0"))
    collector.stats = SchedulerStats(
        num_running=0,
        num_waiting=0,
        num_steps=3,
        num_mixed_steps=0,
        num_preemptions=0,
        kv_usage=0.0,
        prefix_cache=cache,
    )
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode().splitlines()


def test_lost_tokens_are_counted_by_the_group_that_lost_them():
    lines = text_of(PrefixCacheStats(num_query_tokens=100, num_hit_tokens=40, num_lost_tokens=(0, 24)))
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 100.0' in lines
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 40.0' in lines
    lost = [line for line in lines if line.startswith("vllm:prefix_cache_lost_tokens_total")]
    assert [line.rpartition(" ")[2] for line in lost] == ["0.0", "24.0"]
    assert ['kv_group="0"' in lost[0], 'kv_group="1"' in lost[1]] == [True, True]


def test_a_single_group_loses_nothing():
    lines = text_of(PrefixCacheStats(num_query_tokens=100, num_hit_tokens=40))
    assert not [line for line in lines if line.startswith("vllm:prefix_cache_lost_tokens_total")]
