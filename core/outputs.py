"""What a request gives back: the values a caller of `LLM.generate` holds. Names are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]

OutputKind = Literal["cumulative", "delta", "final"]
"""What the outputs of one request hold: everything so far, what is new since the last one, or everything at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """Log probability of one token at one position."""

    logprob: float
    """Natural logarithm, of the raw distribution."""
    rank: int
    """1 for the likeliest token of the vocabulary."""
    decoded_token: str
    """The token's text; empty while it is only part of a character."""
    bytes: bytes
    """The token's own bytes, unambiguous where the text is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log probabilities at one position, from the raw distribution, as they leave the sampler: ids only."""

    token_ids: tuple[int, ...]
    """The token itself first, then the likeliest in order."""
    logprobs: tuple[float, ...]
    rank: int
    """Rank of the first token in the vocabulary, 1 for the likeliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request in seconds of `time.monotonic()`."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """TTFT: arrival to first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    """All new tokens, an end-of-sequence or stop token included."""
    cumulative_logprob: float | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    """One dict a token: the sampled token first, then the likeliest."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that matched; None for end of sequence."""
    error: str | None = None
    """What went wrong, where `finish_reason` is ``"error"``."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt with its completions."""

    request_id: str
    prompt: str | None
    """None where the caller gave token ids."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    """One entry a prompt token; the first is None."""
    finished: bool = False
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was taken from the prefix cache, not computed."""
    metrics: RequestMetrics | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """The vector of one text."""

    embedding: tuple[float, ...]
    """As many numbers as the model's hidden states have channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """One prompt with its vector."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: EmbeddingOutput
    finished: bool = True
