"""From token ids back to text: what the callers of the engine see."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidInput
from ..outputs import CompletionOutput, FinishReason, Logprob, OutputKind, RequestMetrics, RequestOutput
from ..params import SamplingParams
from ..scheduler.output import EngineCoreOutput, TokenLogprobs
from ..text import IncrementalDetokenizer, Tokenizer
from .inputs import PreparedRequest

CONTEXT = 16
"""Tokens before one of the prompt's that are looked at for its text: a character has four bytes at most."""


@dataclass(slots=True, kw_only=True)
class _Completion:
    """One completion on its way."""

    index: int
    detokenizer: IncrementalDetokenizer
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    """Text since the last delta."""
    told: int = 0
    """Tokens in the deltas so far."""
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def value(self, *, delta: bool = False) -> CompletionOutput:
        """Everything so far, or what is new since the last delta."""
        text, start = self.detokenizer.text, 0
        if delta:
            text, start = "".join(self.released), self.told
            self.released.clear()
            self.told = len(self.token_ids)
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=tuple(self.token_ids[start:]),
            cumulative_logprob=self.cumulative_logprob if wanted else None,
            logprobs=tuple(self.logprobs[start:]) if wanted else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )


@dataclass(slots=True, kw_only=True)
class _Group:
    """One prompt with its completions, each a request of its own in the engine."""

    request: PreparedRequest
    kind: OutputKind
    arrival_time: float
    completions: dict[str, _Completion] = field(default_factory=dict)
    """By the engine's request id."""
    news: dict[int, _Completion] = field(default_factory=dict)
    """Those that the next delta tells of, by index."""
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=lambda: [None])
    prompt_told: bool = False
    """Whether a delta has carried the prompt's log probabilities."""
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def finished(self) -> bool:
        return all(c.finish_reason is not None for c in self.completions.values())

    def value(self) -> RequestOutput:
        """The next output."""
        delta = self.kind == "delta"
        told = self.news.values() if delta else self.completions.values()
        finished = self.finished
        output = RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt.text,
            prompt_token_ids=self.request.token_ids,
            outputs=tuple(c.value(delta=delta) for c in told),
            prompt_logprobs=self._prompt_value(delta),
            finished=finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=RequestMetrics(
                arrival_time=self.arrival_time,
                first_scheduled_time=self.first_scheduled_time,
                first_token_time=self.first_token_time,
                last_token_time=self.last_token_time,
                finished_time=time.monotonic() if finished else None,
                num_preemptions=self.num_preemptions,
            ),
        )
        self.news.clear()
        return output

    def _prompt_value(self, delta: bool) -> tuple[dict[int, Logprob] | None, ...] | None:
        """Log probabilities of the prompt once they are complete; in deltas once only."""
        scored = self.request.params.prompt_logprobs is not None
        if not scored or self.prompt_told or len(self.prompt_logprobs) < len(self.request.token_ids):
            return None
        self.prompt_told = delta
        return tuple(self.prompt_logprobs)


class OutputProcessor:
    """Owner of the texts of all live requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._groups: dict[str, _Group] = {}
        """By the engine's request id, while that completion lives."""
        self._by_id: dict[str, _Group] = {}
        """By the caller's request id, while any of its completions lives."""

    def add(self, request: PreparedRequest, kind: OutputKind) -> None:
        """Expect outputs of its completions. Raises `InvalidInput` where a live request has the same id."""
        if request.request_id in self._by_id:
            raise InvalidInput("request_id", f"{request.request_id!r} is the id of a request that is running")
        group = _Group(request=request, kind=kind, arrival_time=time.monotonic())
        for index, engine_id in enumerate(request.engine_ids):
            detokenizer = IncrementalDetokenizer(self._tokenizer, request.token_ids, request.params)
            group.completions[engine_id] = _Completion(index=index, detokenizer=detokenizer, params=request.params)
            self._groups[engine_id] = group
        self._by_id[request.request_id] = group

    def engine_ids(self, request_ids: Iterable[str]) -> list[str]:
        """The engine's ids of the completions of these requests that live."""
        groups = [group for i in request_ids if (group := self._by_id.get(i)) is not None]
        return [i for group in groups for i in group.completions if i in self._groups]

    def drop(self, engine_ids: Iterable[str]) -> None:
        """Forget completions that the engine does not hold."""
        for engine_id in engine_ids:
            group = self._groups.pop(engine_id, None)
            if group is not None and not any(i in self._groups for i in group.completions):
                del self._by_id[group.request.request_id]

    def process(self, outputs: Iterable[EngineCoreOutput]) -> tuple[list[RequestOutput], list[str]]:
        """News for the callers, and the completions that a stop string ended, which the engine must still be told.

        Outputs of unknown requests are ignored: an abort may cross them.
        """
        touched: dict[str, _Group] = {}
        stopped: list[str] = []
        for output in outputs:
            group = self._groups.get(output.request_id)
            if group is None:
                continue
            touched[group.request.request_id] = group
            completion = group.completions[output.request_id]
            group.news[completion.index] = completion
            self._account(group, output)
            if self._advance(completion, output):
                stopped.append(output.request_id)
            if completion.finish_reason is not None:
                self.drop((output.request_id,))
        return [group.value() for group in touched.values() if group.kind != "final" or group.finished], stopped

    def _account(self, group: _Group, output: EngineCoreOutput) -> None:
        """Times and counts of the prompt."""
        if output.new_token_ids:
            group.last_token_time = time.monotonic()
            if group.first_token_time is None:
                # Of several completions the first to start says what the prompt found in the cache.
                group.first_token_time = group.last_token_time
                group.num_cached_tokens = output.num_cached_tokens
        group.first_scheduled_time = group.first_scheduled_time or output.first_scheduled_time
        group.num_preemptions = max(group.num_preemptions, output.num_preemptions)
        token_ids = group.request.token_ids
        for position, entry in enumerate(output.new_prompt_logprobs, len(group.prompt_logprobs)):
            if position < len(token_ids):
                group.prompt_logprobs.append(self._logprobs(entry, token_ids[max(0, position - CONTEXT) : position]))

    def _advance(self, completion: _Completion, output: EngineCoreOutput) -> bool:
        """Take new tokens in; whether a stop string ended the completion."""
        detokenizer = completion.detokenizer
        ends = output.finish_reason == "stop"
        completion.released.append(detokenizer.push(output.new_token_ids, ends_with_stop_token=ends))
        kept = detokenizer.num_tokens - len(completion.token_ids)
        for entry in output.new_logprobs[:kept]:
            completion.logprobs.append(self._logprobs(entry, completion.token_ids))
            completion.cumulative_logprob += entry.logprobs[0]
        completion.token_ids.extend(output.new_token_ids[:kept])
        if detokenizer.stop_reason is not None:
            completion.finish_reason, completion.stop_reason = "stop", detokenizer.stop_reason
            return output.finish_reason is None
        if output.finish_reason is not None:
            completion.released.append(detokenizer.finish())
            completion.finish_reason, completion.stop_reason = output.finish_reason, output.stop_reason
            completion.error = output.error
        return False

    def _logprobs(self, entry: TokenLogprobs, before: Sequence[int]) -> dict[int, Logprob]:
        """One position: the token itself first, then the likeliest."""
        found: dict[int, Logprob] = {}
        for place, (token, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
            if token not in found:
                found[token] = Logprob(
                    logprob=logprob,
                    rank=entry.rank if place == 0 else place,
                    decoded_token=self._tokenizer.token_text(token, before),
                    bytes=self._tokenizer.token_bytes(token),
                )
        return found
