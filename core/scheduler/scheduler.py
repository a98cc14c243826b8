"""Decides, step by step, which requests compute how many tokens, and takes their results in.

There is no prefill and no decode phase: each step lets the computed tokens of every request catch up with its known
ones, within a token budget. The idea is vLLM's; chunked prefills beside decodes are Sarathi-Serve's (arXiv 2403.02310).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable

from ..errors import HeadstockError, InvalidInput
from ..kv import BlockIds, KVCacheManager, PrefixIdentity
from .admission import check_admissible
from .config import SchedulerConfig
from .output import EngineCoreOutput, EngineRequest, ModelRunnerOutput, SchedulerOutput
from .queue import QUEUES, rank
from .request import Request
from .stats import SchedulerStats
from .status import RequestStatus
from .step import Step
from .stop import Stop, check_stop

logger = logging.getLogger(__name__)


class Scheduler:
    """Owner of all requests. One thread calls `schedule`, runs the step, and calls `update_from_output`, in turn.

    The next step may be scheduled before the results of one are taken in: placeholders stand for the tokens that it
    will give. Steps have to be run in their order. `abort` and `add` may come at any point between. `clock` gives
    seconds of `time.monotonic()`.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVCacheManager, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.kv = kv
        self._clock = clock
        # The newest token has no KV yet, so a request may know one token more than the cache can hold.
        self._max_total_tokens = min(config.max_model_len, kv.max_tokens + 1)
        self._watermark = int(config.watermark * kv.config.num_blocks)
        self._requests: dict[str, Request] = {}
        self._running: dict[str, Request] = {}
        self._waiting = QUEUES[config.policy]()
        self._finished: list[str] = []
        self._orders = itertools.count()
        self._step_numbers = itertools.count()
        self._flying: dict[int, dict[str, tuple[Request, bool]]] = {}
        """Steps whose results are to come: their requests, and whether they get a token."""
        self._num_steps = 0
        self._num_mixed_steps = 0
        self._num_preemptions = 0

    # Requests come and go.

    def add(self, source: EngineRequest) -> None:
        """Queue a request, or raise with nothing kept of it.

        Raises `InvalidInput` where the prompt is empty, leaves no room for a token
        (``len(prompt) + 1 > max_model_len``), asks for several completions or reuses the id of a live request, and
        `CapacityError` where the KV cache cannot hold the prompt and one token even when nothing else runs.
        """
        self.check(source)
        request = Request(
            source,
            chains=self.kv.new_chains(PrefixIdentity(cache_salt=source.cache_salt)),
            order=next(self._orders),
            max_model_len=self.config.max_model_len,
        )
        self._requests[request.request_id] = request
        self._waiting.add(request)

    def check(self, source: EngineRequest) -> None:
        """Raise what `add` would raise, and keep nothing."""
        if source.request_id in self._requests:
            raise InvalidInput("request_id", f"{source.request_id!r} is the id of a request that still runs or waits")
        check_admissible(source, self.config, self.kv)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests in whatever state they are; ids that do not live are ignored. One last output for each ended."""
        outputs: list[EngineCoreOutput] = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request, Stop(RequestStatus.FINISHED_ABORTED))
                outputs.append(
                    EngineCoreOutput(
                        request_id=request_id,
                        finish_reason=request.status.finish_reason,
                        num_cached_tokens=request.num_cached_tokens,
                        num_preemptions=request.num_preemptions,
                        first_scheduled_time=request.first_scheduled_time,
                    )
                )
        return outputs

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._requests)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that run or wait."""
        return tuple(self._requests)

    def stats(self) -> SchedulerStats:
        """Counters as of now."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_steps=self._num_steps,
            num_mixed_steps=self._num_mixed_steps,
            num_preemptions=self._num_preemptions,
            kv_usage=self.kv.usage,
            prefix_cache=self.kv.prefix_stats,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, changing nothing, while requests run."""
        return self.kv.reset_prefix_cache()

    def forget_prefixes(self) -> None:
        """Forget all cached prefixes, though requests run: they keep what they hold."""
        self.kv.forget_prefixes()

    # A step is decided.

    def schedule(self, max_tokens: int | None = None) -> SchedulerOutput:
        """The next step. Running requests come first; others are admitted only when nobody had to be preempted.

        `max_tokens` is its budget, where that is to be less than the configured one.
        """
        step = Step(max_tokens or self.config.max_num_batched_tokens, next(self._step_numbers))
        self._schedule_running(step)
        if not step.preempted:
            self._admit_waiting(step)
        output = step.output(self._finished)
        self._finished.clear()
        if step.running or step.admitted:
            self._num_steps += 1
            self._num_mixed_steps += step.is_mixed
        # Advanced now and not when results arrive: the next step depends on counts only.
        flying: dict[str, tuple[Request, bool]] = {}
        for row in step.rows():
            flying[row.request.request_id] = row.request, row.completes
            row.request.num_placeholders += row.completes
            row.request.num_computed_tokens += row.num_tokens
        if flying:
            self._flying[step.number] = flying
        return output

    def preempt_all(self) -> None:
        """Have all running requests begin again, without the results of any step that is on its way.

        Nothing that is cached is found any more.
        """
        self._flying.clear()
        for request in reversed(tuple(self._running.values())):
            self._take_back(request)
        self.forget_prefixes()

    def _schedule_running(self, step: Step) -> None:
        """In order of admission, and nobody is left out: each request was admitted into a step that had a token for it
        beside all before it, and none of those asks for more now than it did then. So prompts cannot starve answers.
        """
        for request in tuple(self._running.values()):
            if request.request_id not in self._running:
                continue  # preempted in this step for one before it
            num_tokens = self._chunk(self._uncomputed(request), step)
            if num_tokens == 0:
                continue  # all that is left of it is on the way
            block_ids = self._allocate(request, num_tokens, step)
            if block_ids is not None:
                step.place(request, num_tokens, block_ids)
        # Not before all rows are certain: a cached block of a row taken out again would never be computed.
        for row in step.running.values():
            self.kv.cache_blocks(row.request, row.request.num_computed_tokens + row.num_tokens)

    def _uncomputed(self, request: Request) -> int:
        """Tokens, known or on the way, whose KV no step computes yet; 0 once the last of the answer is on the way."""
        num_tokens = request.num_tokens + request.num_placeholders
        last = min(self._max_total_tokens, request.num_prompt_tokens + request.max_tokens)
        return 0 if request.num_placeholders and num_tokens >= last else num_tokens - request.num_computed_tokens

    def _chunk(self, num_tokens: int, step: Step) -> int:
        """How many of `num_tokens` fit in the step."""
        limit = self.config.long_prefill_token_threshold or num_tokens
        return min(num_tokens, limit, step.budget)

    def _allocate(self, request: Request, num_tokens: int, step: Step) -> BlockIds | None:
        """Blocks for a running request, preempting others for them; None where the request itself had to go."""
        while (block_ids := self.kv.allocate_slots(request, num_tokens)) is None:
            victim = self._victim()
            self._preempt(victim, step)
            if victim is request:
                return None
        return block_ids

    def _victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self._running.values(), key=rank)
        return next(reversed(self._running.values()))

    def _preempt(self, request: Request, step: Step) -> None:
        step.preempt(request)
        self._take_back(request)

    def _take_back(self, request: Request) -> None:
        self.kv.free(request.request_id)
        del self._running[request.request_id]
        request.preempt()
        self._waiting.restore(request)
        self._num_preemptions += 1

    def _admit_waiting(self, step: Step) -> None:
        if not self._can_admit(step):
            return
        # Blocks that admitted prompts will still take for their later chunks are spoken for.
        reserved = sum([self.kv.blocks_to_come(request) for request in self._running.values()])
        while self._can_admit(step):
            request = self._waiting.peek()
            hit = self.kv.get_computed_blocks(request)
            num_tokens = self._chunk(request.num_tokens - hit.num_tokens, step)
            keep_free = reserved + self._watermark if self._running else 0
            block_ids = self.kv.admit(request, num_tokens, hit, keep_free=keep_free)
            if block_ids is None:
                return
            self._waiting.pop()
            self.kv.record_admission(request, hit, resumed=request.num_preemptions > 0)
            self._start(request, hit.num_tokens)
            step.admit(request, num_tokens, block_ids)
            self.kv.cache_blocks(request, hit.num_tokens + num_tokens)
            reserved += self.kv.blocks_to_come(request)

    def _can_admit(self, step: Step) -> bool:
        return bool(self._waiting and step.budget) and len(self._running) < self.config.max_num_seqs

    def _start(self, request: Request, num_hit_tokens: int) -> None:
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_hit_tokens
            request.first_scheduled_time = self._clock()
        request.num_computed_tokens = num_hit_tokens
        request.become(RequestStatus.RUNNING)
        self._running[request.request_id] = request

    # A step has been computed.

    def update_from_output(self, scheduled: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Take in what a step computed; news of each request that has any.

        Requests that have ended while the step ran are left out; of those preempted meanwhile, the tokens count.
        Raises `HeadstockError` where the runner gave tokens to a request whose prompt is not finished, or none to one
        that is ready for its next token.
        """
        outputs: list[EngineCoreOutput] = []
        for request_id, (request, complete) in self._flying.pop(scheduled.number, {}).items():
            if self._requests.get(request_id) is not request:
                continue
            output = self._take(request, result, complete=complete)
            if output is not None:
                outputs.append(output)
        return outputs

    def _take(self, request: Request, result: ModelRunnerOutput, *, complete: bool) -> EngineCoreOutput | None:
        request_id = request.request_id
        failure = result.failures.get(request_id)
        sampled = () if failure is not None else result.sampled_token_ids.get(request_id, ())
        if failure is None and bool(sampled) != complete:
            raise HeadstockError(
                f"request {request_id}: the model runner gave {len(sampled)} tokens after computing "
                f"{request.num_computed_tokens} of {request.num_tokens}"
            )
        running = request_id in self._running
        request.num_placeholders -= complete and running
        # One that was preempted meanwhile scores its prompt again.
        entries = result.prompt_logprobs.get(request_id) if running else None
        prompt_logprobs = request.untold_prompt_logprobs(entries) if entries else ()
        stop = None if failure is None else Stop(RequestStatus.FINISHED_ERROR)
        kept = 0
        for token_id in sampled:
            request.append(token_id)
            kept += 1
            stop = check_stop(request, self._max_total_tokens)
            if stop is not None:
                break
        if not kept and not prompt_logprobs and stop is None:
            return None
        if stop is not None:
            self._finish(request, stop)
        return EngineCoreOutput(
            request_id=request_id,
            new_token_ids=tuple(sampled[:kept]),
            new_logprobs=tuple(result.logprobs.get(request_id, ())[:kept]),
            new_prompt_logprobs=prompt_logprobs,
            finish_reason=None if stop is None else stop.status.finish_reason,
            stop_reason=None if stop is None else stop.reason,
            error=failure,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            first_scheduled_time=request.first_scheduled_time,
        )

    def _finish(self, request: Request, stop: Stop) -> None:
        """End a request from any live state and take its blocks back."""
        if self._running.pop(request.request_id, None) is None:
            self._waiting.remove(request.request_id)
        else:
            self._finished.append(request.request_id)
        request.become(stop.status)
        # What a failed request computed may be at fault, so nobody is to find it.
        self.kv.free(request.request_id, forget=stop.status is RequestStatus.FINISHED_ERROR)
        del self._requests[request.request_id]
        if stop.status is RequestStatus.FINISHED_LENGTH_CAPPED:
            self._warn_if_capacity_ended(request)

    def _warn_if_capacity_ended(self, request: Request) -> None:
        wanted = min(request.num_prompt_tokens + request.max_tokens, self.config.max_model_len)
        if request.num_tokens < wanted:
            logger.warning(
                "request %s ends with %d of %d tokens: the KV cache holds no more",
                request.request_id,
                request.num_tokens,
                wanted,
            )
