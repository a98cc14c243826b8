"""What an engine is told at its start."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..attention import Device
from ..errors import InvalidInput
from ..scheduler.config import DEFAULT_BATCHED_TOKENS, DEFAULT_NUM_SEQS, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything but the model and its attention backends. Raises `InvalidInput` naming the field."""

    device: Device
    dtype: str = "auto"
    """Compute dtype; ``auto`` is the model's own, or float32 on CPUs that are slow in 16 bits."""
    block_size: int | None = None
    """Tokens a KV block; None is 16, or the first size that all chosen backends take."""
    enable_prefix_caching: bool = True
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step; None is 2048, or `max_num_seqs` if that is more."""
    max_num_seqs: int = DEFAULT_NUM_SEQS
    """Requests that run at once."""
    max_model_len: int | None = None
    """Longest request, prompt and answer together; None is the model's limit, or what the KV cache holds if less."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache; None measures what there is."""
    memory_utilization: float = 0.9
    """Share of an accelerator's memory that may be used; of no meaning on CPUs."""
    scheduling_policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 is no limit."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(name, f"must be an integer of at least 1, not {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InvalidInput("seed", f"must be an integer, not {self.seed!r}")
        if not (math.isfinite(self.memory_utilization) and 0 < self.memory_utilization <= 1):
            raise InvalidInput("memory_utilization", f"must be above 0 and at most 1, not {self.memory_utilization}")

    @property
    def batched_tokens(self) -> int:
        """`max_num_batched_tokens` with its default filled in."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(DEFAULT_BATCHED_TOKENS, self.max_num_seqs)
