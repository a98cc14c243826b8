"""What a step brought, for whoever counts and measures: a value a step, not a call a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..outputs import FinishReason, RequestMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCompletion:
    """One completion at its end."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    """New tokens."""
    max_tokens: int | None
    """As asked."""
    metrics: RequestMetrics
    """Times of this completion alone."""


@dataclass(slots=True, kw_only=True)
class IterationStats:
    """News of one step, in seconds and tokens."""

    num_prompt_tokens: int = 0
    """Of prompts whose first token came in this step."""
    num_generation_tokens: int = 0
    first_token_latencies: list[float] = field(default_factory=list)
    """TTFT: arrival to first token, of completions that got theirs."""
    inter_token_latencies: list[float] = field(default_factory=list)
    """Time since the step before, of each completion that got further tokens; shared out where it got several."""
    finished: list[FinishedCompletion] = field(default_factory=list)


class Observer(Protocol):
    """Is told of every step that brought news."""

    def observe(self, stats: IterationStats) -> None: ...
