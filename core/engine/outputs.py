"""From token ids back to text: what the callers of the engine see."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from ..params import SamplingParams
from ..scheduler.output import EngineCoreOutput, TokenLogprobs
from ..text import IncrementalDetokenizer, Tokenizer
from .prompts import Prompt


@dataclass(slots=True, kw_only=True)
class _Completion:
    """One completion on its way."""

    index: int
    detokenizer: IncrementalDetokenizer
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def value(self) -> CompletionOutput:
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.text,
            token_ids=tuple(self.token_ids),
            cumulative_logprob=self.cumulative_logprob if wanted else None,
            logprobs=tuple(self.logprobs) if wanted else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )


@dataclass(slots=True, kw_only=True)
class _Group:
    """One prompt with its completions, each a request of its own in the engine."""

    request_id: str
    prompt: Prompt
    token_ids: tuple[int, ...]
    params: SamplingParams
    stream: bool
    """Whether the caller wants news before the end."""
    arrival_time: float
    completions: dict[str, _Completion] = field(default_factory=dict)
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=lambda: [None])
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def finished(self) -> bool:
        return all(c.finish_reason is not None for c in self.completions.values())

    def value(self) -> RequestOutput:
        metrics = RequestMetrics(
            arrival_time=self.arrival_time,
            first_scheduled_time=self.first_scheduled_time,
            first_token_time=self.first_token_time,
            last_token_time=self.last_token_time,
            finished_time=time.monotonic() if self.finished else None,
            num_preemptions=self.num_preemptions,
        )
        scored = self.params.prompt_logprobs is not None and len(self.prompt_logprobs) == len(self.token_ids)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.token_ids,
            outputs=tuple(c.value() for c in self.completions.values()),
            prompt_logprobs=tuple(self.prompt_logprobs) if scored else None,
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=metrics,
        )


class OutputProcessor:
    """Owner of the texts of all live requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._groups: dict[str, _Group] = {}

    def add(
        self,
        request_ids: Iterable[str],
        group_id: str,
        prompt: Prompt,
        token_ids: tuple[int, ...],
        params: SamplingParams,
        *,
        stream: bool,
    ) -> None:
        """Expect the outputs of `request_ids`, the completions of one prompt."""
        group = _Group(
            request_id=group_id,
            prompt=prompt,
            token_ids=token_ids,
            params=params,
            stream=stream,
            arrival_time=time.monotonic(),
        )
        for index, request_id in enumerate(request_ids):
            detokenizer = IncrementalDetokenizer(self._tokenizer, token_ids, params)
            group.completions[request_id] = _Completion(index=index, detokenizer=detokenizer, params=params)
            self._groups[request_id] = group

    def requests_of(self, group_ids: Iterable[str]) -> list[str]:
        """Live requests that belong to these prompts."""
        wanted = set(group_ids)
        return [i for i, group in self._groups.items() if group.request_id in wanted]

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget requests that the engine does not hold."""
        for request_id in request_ids:
            self._groups.pop(request_id, None)

    def process(self, outputs: Iterable[EngineCoreOutput]) -> tuple[list[RequestOutput], list[str]]:
        """News for the callers, and the requests that a stop string ended, which the engine must still be told.

        Outputs of unknown requests are ignored: an abort may cross them.
        """
        touched: dict[str, _Group] = {}
        stopped: list[str] = []
        for output in outputs:
            group = self._groups.get(output.request_id)
            if group is None:
                continue
            touched[group.request_id] = group
            completion = group.completions[output.request_id]
            self._account(group, output)
            if self._advance(completion, output):
                stopped.append(output.request_id)
            if completion.finish_reason is not None:
                del self._groups[output.request_id]
        return [group.value() for group in touched.values() if group.stream or group.finished], stopped

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
        if len(group.prompt_logprobs) < len(group.token_ids):
            start = len(group.prompt_logprobs)
            for position, entry in enumerate(output.new_prompt_logprobs, start):
                group.prompt_logprobs.append(self._logprobs(entry, list(group.token_ids[:position])))

    def _advance(self, completion: _Completion, output: EngineCoreOutput) -> bool:
        """Take new tokens in; whether a stop string ended the completion."""
        detokenizer = completion.detokenizer
        ends = output.finish_reason == "stop"
        detokenizer.push(output.new_token_ids, ends_with_stop_token=ends)
        kept = detokenizer.num_tokens - len(completion.token_ids)
        for entry in output.new_logprobs[:kept]:
            completion.logprobs.append(self._logprobs(entry, completion.token_ids))
            completion.cumulative_logprob += entry.logprobs[0]
        completion.token_ids.extend(output.new_token_ids[:kept])
        if detokenizer.stop_reason is not None:
            completion.finish_reason, completion.stop_reason = "stop", detokenizer.stop_reason
            return output.finish_reason is None
        if output.finish_reason is not None:
            detokenizer.finish()
            completion.finish_reason, completion.stop_reason = output.finish_reason, output.stop_reason
            completion.error = output.error
        return False

    def _logprobs(self, entry: TokenLogprobs, before: list[int]) -> dict[int, Logprob]:
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
