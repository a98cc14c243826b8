"""What an engine is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ..attention import Device
from ..errors import InvalidInput
from ..model import IMPLEMENTATIONS
from ..scheduler.config import DEFAULT_BATCHED_TOKENS, DEFAULT_NUM_SEQS, Policy

COUNT = 2**31 - 1
"""Largest count of tokens or requests: positions and block ids are 32-bit."""
BOUNDS = {
    "block_size": (1, COUNT),
    "max_num_batched_tokens": (1, COUNT),
    "max_num_seqs": (1, COUNT),
    "max_model_len": (2, COUNT),
    "kv_cache_memory_bytes": (1, 2**63 - 1),
    "long_prefill_token_threshold": (0, COUNT),
    "seed": (-(2**63), 2**63 - 1),
}
"""Integer field → the least and the greatest it may be."""
OPTIONAL = ("block_size", "max_num_batched_tokens", "max_model_len", "kv_cache_memory_bytes")


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
    enforce_eager: bool = False
    """Launch every kernel by itself. Otherwise decode steps are captured into device graphs, where the device has them
    and all chosen backends can be captured."""
    model_impl: str = "auto"
    """Whose code runs the model: one of `IMPLEMENTATIONS`."""
    async_scheduling: bool = False
    """Schedule the next step while one is computed, on the understanding that requests go on; tokens are the same."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(name, f"must be an integer, not {value!r}")
            if not low <= value <= high:
                raise InvalidInput(name, f"must be from {low} to {high}, not {value}")
        for name in ("enable_prefix_caching", "enforce_eager", "async_scheduling"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidInput(name, f"must be True or False, not {value!r}")
        if not isinstance(self.dtype, str):
            raise InvalidInput("dtype", f"must be a name, not {self.dtype!r}")
        share = self.memory_utilization
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise InvalidInput("memory_utilization", f"must be above 0 and at most 1, not {share!r}")
        if self.model_impl not in IMPLEMENTATIONS:
            raise InvalidInput("model_impl", f"must be one of {', '.join(IMPLEMENTATIONS)}, not {self.model_impl!r}")
        if self.scheduling_policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise InvalidInput("scheduling_policy", f"must be one of {known}, not {self.scheduling_policy!r}")

    @property
    def batched_tokens(self) -> int:
        """`max_num_batched_tokens` with its default filled in."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(DEFAULT_BATCHED_TOKENS, self.max_num_seqs)
