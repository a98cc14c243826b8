"""The values that pass between scheduler, worker and front end in one step.

All are immutable; nobody holds a reference to another's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..outputs import FinishReason, TokenLogprobs
from ..params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request as it enters the engine: token ids only, text stays in the front end."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    """With `n == 1`; the front end fans out."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's end-of-sequence ids; they end a request unless `ignore_eos`."""
    priority: int = 0
    """Lower runs earlier under the priority policy."""
    arrival_time: float = 0.0
    """Seconds of `time.monotonic()`."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    session: str | None = None
    """Of several engines, one serves all requests of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequestData:
    """All a worker must know of a request it has not seen, or has dropped at a preemption."""

    request_id: str
    token_ids: tuple[int, ...]
    """Every token known so far: the prompt, then outputs of before a preemption."""
    num_prompt_tokens: int
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    block_ids: tuple[tuple[int, ...], ...]
    """Per KV group, the request's whole table."""
    num_computed_tokens: int
    """Tokens whose KV is in those blocks already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRequestData:
    """What changed for a request the worker holds. The worker appended the sampled tokens by itself."""

    request_id: str
    new_block_ids: tuple[tuple[int, ...], ...]
    """Per KV group, blocks to append to the table."""
    num_computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """What one step computes."""

    new_requests: tuple[NewRequestData, ...] = ()
    cached_requests: tuple[CachedRequestData, ...] = ()
    num_scheduled_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Request id → tokens computed for it in this step; its keys are the step's requests."""
    number: int = 0
    """By which the scheduler knows it again."""
    finished_request_ids: tuple[str, ...] = ()
    """Ended since the last step: the worker drops their state."""
    preempted_request_ids: tuple[str, ...] = ()
    """Lost their blocks in this step: the worker drops their state; they come back as new."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunnerOutput:
    """What one step computed."""

    sampled_token_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Request id → new tokens; no entry while the prompt is not finished."""
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict[str, tuple[TokenLogprobs, ...]])
    """Request id → one entry a new token, where asked for."""
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(
        default_factory=dict[str, tuple[TokenLogprobs, ...]]
    )
    """Request id → entries for the prompt positions of this step, where asked for; position 0 has none."""
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Request id → why no token could be sampled for it; it ends, and nobody else does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCoreOutput:
    """News of one request after a step. Partial prefills give none unless they carry prompt logprobs."""

    request_id: str
    new_token_ids: tuple[int, ...] = ()
    new_logprobs: tuple[TokenLogprobs, ...] = ()
    new_prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    """What went wrong, where `finish_reason` is ``"error"``."""
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
