"""What the scheduler has done and is doing."""

from __future__ import annotations

from dataclasses import dataclass

from ..kv import PrefixCacheStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot; counts are since the start."""

    num_running: int
    num_waiting: int
    """New and preempted requests in the queue."""
    num_steps: int
    """Steps that computed something."""
    num_mixed_steps: int
    """Of those, the ones with decode rows (one token, all before it computed) and longer rows side by side."""
    num_preemptions: int
    kv_usage: float
    """Share of the KV blocks that requests own, 0 to 1."""
    prefix_cache: PrefixCacheStats

    @property
    def num_cached_tokens(self) -> int:
        """Tokens not computed because their KV was cached, at first admissions."""
        return self.prefix_cache.num_hit_tokens
