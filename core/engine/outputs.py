"""From token ids back to text: what the callers of the engine see."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from ..errors import InvalidInput
from ..outputs import CompletionOutput, FinishReason, Logprob, OutputKind, RequestMetrics, RequestOutput
from ..params import SamplingParams
from ..scheduler.output import EngineCoreOutput, TokenLogprobs
from ..text import IncrementalDetokenizer, Tokenizer
from .inputs import PreparedRequest
from .observer import FinishedCompletion, IterationStats, Observer

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
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

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
    live: int
    """Completions that are not finished."""
    completions: dict[str, _Completion] = field(default_factory=dict)
    """By the engine's request id."""
    news: dict[int, _Completion] = field(default_factory=dict)
    """Those that the next delta tells of, by index."""
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=lambda: [None])
    prompt_told: bool = False
    """Whether a delta has carried the prompt's log probabilities."""
    first: _Completion | None = None
    """The first completion to get a token: it says what the prompt found in the cache."""

    @property
    def arrival_time(self) -> float:
        return self.request.requests[0].arrival_time

    def value(self) -> RequestOutput:
        """The next output."""
        delta = self.kind == "delta"
        told = self.news.values() if delta else self.completions.values()
        finished, first = self.live == 0, self.first
        output = RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt.text,
            prompt_token_ids=self.request.token_ids,
            outputs=tuple(c.value(delta=delta) for c in told),
            prompt_logprobs=self._prompt_value(delta),
            finished=finished,
            num_cached_tokens=0 if first is None else first.num_cached_tokens,
            metrics=self._metrics(),
        )
        self.news.clear()
        return output

    def _metrics(self) -> RequestMetrics:
        """Of the prompt: its first completion's start, the last one's end."""
        all_ = self.completions.values()
        started = [c.first_scheduled_time for c in all_ if c.first_scheduled_time is not None]
        return RequestMetrics(
            arrival_time=self.arrival_time,
            first_scheduled_time=min(started, default=None),
            first_token_time=None if self.first is None else self.first.first_token_time,
            last_token_time=max([c.last_token_time for c in all_ if c.last_token_time is not None], default=None),
            finished_time=None if self.live else time.monotonic(),
            num_preemptions=max(c.num_preemptions for c in all_),
        )

    def _prompt_value(self, delta: bool) -> tuple[dict[int, Logprob] | None, ...] | None:
        """Log probabilities of the prompt once they are complete; in deltas once only."""
        scored = self.request.params.prompt_logprobs is not None
        if not scored or self.prompt_told or len(self.prompt_logprobs) < len(self.request.token_ids):
            return None
        self.prompt_told = delta
        return tuple(self.prompt_logprobs)


class OutputProcessor:
    """Owner of the texts of all live requests."""

    def __init__(self, tokenizer: Tokenizer, observer: Observer | None = None) -> None:
        self._tokenizer = tokenizer
        self._observer = observer
        self._groups: dict[str, _Group] = {}
        """By the engine's request id, while that completion lives."""
        self._by_id: dict[str, _Group] = {}
        """By the caller's request id, while any of its completions lives."""
        self.num_queued = 0
        """Completions that have no token yet."""
        self.num_queued_tokens = 0
        """Tokens of their prompts."""

    def add(self, request: PreparedRequest, kind: OutputKind) -> None:
        """Expect outputs of its completions.

        Raises `InvalidInput` for a kind that there is not, and where a live request has the same id.
        """
        if kind not in get_args(OutputKind):
            raise InvalidInput("output_kind", f"must be one of {', '.join(get_args(OutputKind))}, not {kind!r}")
        if request.request_id in self._by_id:
            raise InvalidInput("request_id", f"{request.request_id!r} is the id of a request that is running")
        group = _Group(request=request, kind=kind, live=len(request.requests))
        for index, engine_id in enumerate(request.engine_ids):
            detokenizer = IncrementalDetokenizer(self._tokenizer, request.token_ids, request.params)
            group.completions[engine_id] = _Completion(index=index, detokenizer=detokenizer, params=request.params)
            self._groups[engine_id] = group
        self._by_id[request.request_id] = group
        self._count_queued(group, group.live)

    def engine_ids(self, request_ids: Iterable[str]) -> list[str]:
        """The engine's ids of the completions of these requests that live."""
        groups = [group for i in request_ids if (group := self._by_id.get(i)) is not None]
        return [i for group in groups for i in group.completions if i in self._groups]

    def drop(self, engine_ids: Iterable[str]) -> None:
        """Forget completions that the engine does not hold."""
        for engine_id in engine_ids:
            group = self._groups.pop(engine_id, None)
            if group is None:
                continue
            if group.completions[engine_id].first_token_time is None:
                self._count_queued(group, -1)
            group.live -= 1
            if not group.live:
                del self._by_id[group.request.request_id]

    def _count_queued(self, group: _Group, completions: int) -> None:
        self.num_queued += completions
        self.num_queued_tokens += completions * len(group.request.token_ids)

    def end(self, request_ids: Iterable[str], error: str | None = None) -> tuple[list[RequestOutput], list[str]]:
        """Abort requests, `error` saying why: their last outputs, and the completions to end in the engine."""
        outputs: list[RequestOutput] = []
        ended: list[str] = []
        stats, now = IterationStats(), time.monotonic()
        for request_id in request_ids:
            left = self.engine_ids((request_id,))
            if not left:
                continue
            group = self._by_id[request_id]
            for engine_id in left:
                completion = group.completions[engine_id]
                completion.released.append(completion.detokenizer.finish())
                completion.finish_reason, completion.error = "abort", error
                group.news[completion.index] = completion
                stats.finished.append(self._finished(group, completion, "abort", now))
            self.drop(left)
            ended += left
            outputs.append(group.value())
        if ended and self._observer is not None:
            self._observer.observe(stats)
        return outputs, ended

    def process(self, outputs: Iterable[EngineCoreOutput]) -> tuple[list[RequestOutput], list[str]]:
        """News for the callers, and the completions that a stop string ended, which the engine must still be told.

        Outputs of unknown requests are ignored: an abort may cross them.
        """
        touched: dict[str, _Group] = {}
        stopped: list[str] = []
        stats, now = IterationStats(), time.monotonic()
        for output in outputs:
            group = self._groups.get(output.request_id)
            if group is None:
                continue
            touched[group.request.request_id] = group
            completion = group.completions[output.request_id]
            group.news[completion.index] = completion
            self._take_prompt_logprobs(group, output)
            if self._advance(completion, output):
                stopped.append(output.request_id)
            self._account(group, completion, output, stats, now)
            if completion.finish_reason is not None:
                self.drop((output.request_id,))
        if touched and self._observer is not None:
            self._observer.observe(stats)
        return [group.value() for group in touched.values() if group.kind != "final" or not group.live], stopped

    def _account(
        self, group: _Group, completion: _Completion, output: EngineCoreOutput, stats: IterationStats, now: float
    ) -> None:
        """Times and counts."""
        completion.first_scheduled_time = completion.first_scheduled_time or output.first_scheduled_time
        completion.num_preemptions = output.num_preemptions
        count, before = len(output.new_token_ids), completion.last_token_time
        if count:
            stats.num_generation_tokens += count
            completion.last_token_time = now
            if before is not None:
                stats.inter_token_latencies += [(now - before) / count] * count
            else:
                completion.first_token_time = now
                completion.num_cached_tokens = output.num_cached_tokens
                stats.first_token_latencies.append(now - group.arrival_time)
                self._count_queued(group, -1)
                if group.first is None:
                    group.first = completion
                    stats.num_prompt_tokens += len(group.request.token_ids)
        if completion.finish_reason is not None:
            stats.finished.append(self._finished(group, completion, completion.finish_reason, now))

    def _finished(self, group: _Group, completion: _Completion, reason: FinishReason, now: float) -> FinishedCompletion:
        return FinishedCompletion(
            finish_reason=reason,
            num_prompt_tokens=len(group.request.token_ids),
            num_cached_tokens=completion.num_cached_tokens,
            num_tokens=len(completion.token_ids),
            max_tokens=completion.params.max_tokens,
            metrics=RequestMetrics(
                arrival_time=group.arrival_time,
                first_scheduled_time=completion.first_scheduled_time,
                first_token_time=completion.first_token_time,
                last_token_time=completion.last_token_time,
                finished_time=now,
                num_preemptions=completion.num_preemptions,
            ),
        )

    def _take_prompt_logprobs(self, group: _Group, output: EngineCoreOutput) -> None:
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
