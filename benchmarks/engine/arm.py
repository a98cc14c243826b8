"""`Arm`: one engine under test, its answers counted before its time counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from time import perf_counter

from ...core.engine import Prompt
from ...core.errors import HeadstockError
from ...core.params import SamplingParams
from ...entrypoints.llm import LLM
from ...plugins import Failure, Guard
from .metrics import Timeline, metrics_of
from .workload import Workload


class WrongAnswer(HeadstockError):
    """An engine gave other than what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The whole workload, computed once."""

    elapsed: float
    """Seconds from the first request's arrival to the last token."""
    timelines: tuple[Timeline, ...]
    token_ids: tuple[tuple[int, ...], ...]
    """The answers."""
    num_cached_tokens: int
    """Prompt tokens that were found in the prefix cache, over all requests."""
    num_preemptions: int

    @property
    def metrics(self) -> dict[str, float]:
        return metrics_of(self.timelines, self.elapsed)


class Arm:
    """A contender of `interleave`: a turn of it is the workload, from an empty prefix cache."""

    def __init__(self, name: str, workload: Workload, guard: Guard, on_turn: Callable[[], object]) -> None:
        """`on_turn` is told of every turn that is over."""
        self.name = name
        self.turns: list[Turn] = []
        """Those that `interleave` asked for, one a round."""
        self.failure = ""
        """Why this arm has no numbers."""
        self.warm_seconds: tuple[float, ...] = ()
        """Of the turns before the first that counts."""
        self.load_seconds: float = nan
        self.llm: LLM | None = None
        self.requests = workload.requests
        self._guard = guard
        self._on_turn = on_turn
        self._params = [
            SamplingParams(temperature=0, max_tokens=request.output_len, ignore_eos=True)
            for request in workload.requests
        ]

    def load(self, make: Callable[[], LLM]) -> None:
        """Make the engine. Refusals of ours pass on; whatever else is raised is this arm's failure."""
        start = perf_counter()
        made = self._guard.attempt(make)
        if isinstance(made, Failure):
            if isinstance(made.error, HeadstockError):
                raise made.error
            self.failure = str(made)
            return
        self.llm = made
        self.load_seconds = perf_counter() - start

    def run_uncounted(self, turns: int) -> None:
        """Turns that do not count. Those before all others warm up: kernels get compiled, pages touched."""
        for _ in range(turns):
            if not self.failure and (done := self._attempt()):
                self.warm_seconds += (done.elapsed,)
            self._on_turn()

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        """Seconds of one turn, whatever is asked; not a number from the arm's failure on."""
        del calls, warm
        done = None if self.failure else self._attempt()
        if done is not None:
            self.turns.append(done)
        self._on_turn()
        return [nan if done is None else done.elapsed]

    @property
    def dtype(self) -> str:
        """That it computes in; empty where there is no engine."""
        return "" if self.llm is None else self.llm.engine.client.info.dtype

    def close(self) -> None:
        """Give the engine's memory back."""
        if self.llm is not None:
            self.llm.engine.client.close()
            self.llm = None

    def _attempt(self) -> Turn | None:
        result = self._guard.attempt(self._compute)
        if isinstance(result, Failure):
            self.failure = str(result)
            return None
        return result

    def _compute(self) -> Turn:
        """Answer the workload once, and check the counts. Raises `WrongAnswer`."""
        assert self.llm is not None  # `load` comes first
        engine = self.llm.engine
        self.llm.reset_prefix_cache()
        start = perf_counter()
        ids = [
            engine.add_request(Prompt(token_ids=request.token_ids), params, output_kind="delta")
            for request, params in zip(self.requests, self._params, strict=True)
        ]
        times: dict[str, list[float]] = {i: [] for i in ids}
        tokens: dict[str, list[int]] = {i: [] for i in ids}
        ends: dict[str, str] = {}
        cached = preempted = 0
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = perf_counter() - start
            for output in outputs:
                completion = output.outputs[0]
                tokens[output.request_id] += completion.token_ids
                times[output.request_id] += [now] * len(completion.token_ids)
                if output.finished:
                    ends[output.request_id] = completion.error or completion.finish_reason or ""
                    cached += output.num_cached_tokens
                    preempted += output.metrics.num_preemptions if output.metrics else 0
        for number, (i, request) in enumerate(zip(ids, self.requests, strict=True)):
            if len(tokens[i]) != request.output_len:
                raise WrongAnswer(
                    f"request {number} was to have {request.output_len} tokens and has {len(tokens[i])} "
                    f"({ends.get(i, 'it never ended')})"
                )
        return Turn(
            elapsed=max(times[i][-1] for i in ids),
            timelines=tuple(
                Timeline(num_prompt_tokens=len(request.token_ids), token_times=tuple(times[i]))
                for i, request in zip(ids, self.requests, strict=True)
            ),
            token_ids=tuple(tuple(tokens[i]) for i in ids),
            num_cached_tokens=cached,
            num_preemptions=preempted,
        )


def agreement(one: Turn, other: Turn) -> float:
    """Share of tokens in which two arms agree, request by request up to the first difference.

    Greedy answers part where two tokens are nearly as likely, and what comes after differs for that reason alone.
    """
    same = total = 0
    for mine, theirs in zip(one.token_ids, other.token_ids, strict=True):
        total += len(mine)
        same += next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), len(mine))
    return same / total
