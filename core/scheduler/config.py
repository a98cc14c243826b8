"""Limits and policy of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import InvalidInput

Policy = Literal["fcfs", "priority"]

DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_NUM_SEQS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold, and who goes first. Raises `InvalidInput` naming the field."""

    max_model_len: int
    """Tokens of a request, prompt and outputs together. A prompt leaves room for at least one output:
    ``len(prompt) + 1 <= max_model_len``."""
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    """Tokens computed in one step; no more requests than that run at once, since each gets a token in every step."""
    max_num_seqs: int = DEFAULT_NUM_SEQS
    """Requests that run at once."""
    policy: Policy = "fcfs"
    """``fcfs``: first come, first served; the last admitted is preempted first. ``priority``: lower (priority, arrival)
    first; the highest is preempted first."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step, so that several prompts advance side by side; 0 is no limit."""
    watermark: float = 0.01
    """Share of the KV blocks that admitting a request leaves free while others run, so that they can grow for a while
    before one is preempted."""

    def __post_init__(self) -> None:
        for name, low in (
            ("max_model_len", 2),
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("long_prefill_token_threshold", 0),
        ):
            value: int = getattr(self, name)
            if value < low:
                raise InvalidInput(name, f"must be at least {low}, not {value}")
        if self.policy not in get_args(Policy):
            raise InvalidInput("policy", f"must be one of {', '.join(get_args(Policy))}, not {self.policy!r}")
        if not 0 <= self.watermark < 1:
            raise InvalidInput("watermark", f"must be at least 0 and below 1, not {self.watermark}")

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of one request that a step computes."""
        return min(self.max_num_batched_tokens, self.long_prefill_token_threshold or self.max_num_batched_tokens)
