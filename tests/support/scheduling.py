"""A model runner without a model, and the laws that a scheduler and its KV cache keep after every step.

The runner keeps a memory of slots, as a KV cache does, and writes into each a number made of all tokens up to it. All
of them are read back through the block tables, so a wrong, stale or foreign block is seen at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from headstock.core.kv import FULL_RETENTION, KVCacheConfig, KVCacheManager, KVGroupSpec, window_retention
from headstock.core.params import SamplingParams
from headstock.core.scheduler import (
    EngineCoreOutput,
    EngineRequest,
    ModelRunnerOutput,
    NewRequestData,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    TokenLogprobs,
)

VOCABULARY = 50
PRIME = 2**61 - 1


def fold(before: int, token: int) -> int:
    """A number for a token sequence, from the number for all but its last token."""
    return (before * 1_000_003 + token + 1) % PRIME


def folds(tokens: Iterable[int]) -> list[int]:
    numbers: list[int] = []
    for token in tokens:
        numbers.append(fold(numbers[-1] if numbers else 0, token))
    return numbers


def next_token(number: int) -> int:
    """The only answer the fake model has after a sequence with that number."""
    return (number >> 7) % VOCABULARY


def answer(prompt: Sequence[int], max_tokens: int, eos: Sequence[int] = ()) -> list[int]:
    """What the fake model answers, without scheduler or cache."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(folds(tokens)[-1]))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def logprob(number: int) -> TokenLogprobs:
    return TokenLogprobs(token_ids=(next_token(number),), logprobs=(-(number % 97) / 10,), rank=1)


def group(block_size: int = 4, name: str = "layers.0", window: int | None = None) -> KVGroupSpec:
    retention = FULL_RETENTION if window is None else window_retention(window)
    return KVGroupSpec(block_size=block_size, bytes_per_block=64, layer_names=(name,), retention=retention)


GroupShape = int | tuple[int, int]
"""Block size of a group, or that and its window."""


def kv_config(num_blocks: int, shapes: Sequence[GroupShape] = (4,), **options: int) -> KVCacheConfig:
    """A pool of `num_blocks` blocks, the null block included; a shape a group."""
    pairs = [(shape, None) if isinstance(shape, int) else shape for shape in shapes]
    groups = tuple(group(size, f"layers.{i}", window) for i, (size, window) in enumerate(pairs))
    return KVCacheConfig(num_blocks=num_blocks, groups=groups, **options)


def cache(num_blocks: int, shapes: Sequence[GroupShape] = (4,), **options: object) -> KVCacheManager:
    """A manager over `kv_config`; `options` are its own and `max_step_tokens`."""
    own = {key: options.pop(key) for key in ("max_step_tokens",) if key in options}
    return KVCacheManager(kv_config(num_blocks, shapes, **own), **options)  # pyright: ignore


def new_request(name: str, prompt: Sequence[int], *, max_tokens: int | None = 4, **options: object) -> EngineRequest:
    """A greedy request; `options` are fields of `EngineRequest` or `SamplingParams`."""
    own = ("eos_token_ids", "priority", "arrival_time", "cache_salt")
    fields = {key: options.pop(key) for key in own if key in options}
    params = SamplingParams(temperature=0, max_tokens=max_tokens, **options)  # pyright: ignore
    return EngineRequest(request_id=name, prompt_token_ids=tuple(prompt), params=params, **fields)  # pyright: ignore


def new_scheduler(kv: KVCacheManager, **options: object) -> Scheduler:
    settings = {"max_model_len": 1000, "max_num_batched_tokens": 64, "max_num_seqs": 8, "watermark": 0.0, **options}
    return Scheduler(SchedulerConfig(**settings), kv)  # pyright: ignore


@dataclass
class Held:
    """What a worker keeps of one request."""

    new: NewRequestData
    tokens: list[int]
    tables: list[list[int]]
    numbers: list[int]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.numbers.append(fold(self.numbers[-1], token))


class FakeRunner:
    """Runs steps as a worker does: a mirror of each request, all KV of the batch written before any is read.

    The groups share one memory, so a block that goes from one to another is overwritten.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        self.block_sizes = [spec.block_size for spec in config.groups]
        self.windows = [spec.retention.window for spec in config.groups]
        self.memory: dict[tuple[int, int], tuple[int, int]] = {}
        self.held: dict[str, Held] = {}
        self.num_computed: Counter[str] = Counter()
        """Tokens computed per request, recomputed ones counted again."""

    def run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        starts = self._receive(step)
        for name, count in step.num_scheduled_tokens.items():
            self._write(self.held[name], starts[name], starts[name] + count)
            self.num_computed[name] += count
        result = ModelRunnerOutput(sampled_token_ids={}, logprobs={}, prompt_logprobs={})
        for name, count in step.num_scheduled_tokens.items():
            self._read(name, starts[name], starts[name] + count, result)
        return result

    def _receive(self, step: SchedulerOutput) -> dict[str, int]:
        for name in (*step.finished_request_ids, *step.preempted_request_ids):
            del self.held[name]
        starts: dict[str, int] = {}
        for new in step.new_requests:
            assert new.request_id not in self.held, "sent as new, but held"
            tokens = list(new.token_ids)
            self.held[new.request_id] = Held(new, tokens, [list(table) for table in new.block_ids], folds(tokens))
            starts[new.request_id] = new.num_computed_tokens
        for cached in step.cached_requests:
            for table, added in zip(self.held[cached.request_id].tables, cached.new_block_ids, strict=True):
                table.extend(added)
            starts[cached.request_id] = cached.num_computed_tokens
        assert set(starts) == set(step.num_scheduled_tokens)
        return starts

    def _slot(self, held: Held, group: int, position: int) -> tuple[int, int]:
        size = self.block_sizes[group]
        block = held.tables[group][position // size]
        assert block != 0, "the null block is nobody's"
        return block, position % size

    def _write(self, held: Held, start: int, end: int) -> None:
        for g in range(len(self.block_sizes)):
            for position in range(start, end):
                self.memory[self._slot(held, g, position)] = (g, held.numbers[position])

    def _read(self, name: str, start: int, end: int, result: ModelRunnerOutput) -> None:
        held = self.held[name]
        for g, window in enumerate(self.windows):
            seen = range(0 if window is None else max(0, start - window + 1), end)
            found = [self.memory.get(self._slot(held, g, position)) for position in seen]
            expected = [(g, held.numbers[position]) for position in seen]
            assert found == expected, f"request {name}, group {g}: the blocks hold another prefix's KV"
        if held.new.params.prompt_logprobs is not None:
            targets = range(start, min(end, held.new.num_prompt_tokens - 1))
            result.prompt_logprobs[name] = tuple(logprob(held.numbers[p]) for p in targets)  # type: ignore[index]
        if end == len(held.tokens):
            number = held.numbers[-1]
            result.sampled_token_ids[name] = (next_token(number),)  # type: ignore[index]
            if held.new.params.logprobs is not None:
                result.logprobs[name] = (logprob(number),)  # type: ignore[index]
            held.append(next_token(number))


@dataclass
class Answer:
    """All that one request was told."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: EngineCoreOutput | None = None

    @property
    def finish_reason(self) -> str | None:
        return None if self.last is None else self.last.finish_reason


class Served:
    """A scheduler with its runner, and every answer so far."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.runner = FakeRunner(scheduler.kv.config)
        self.answers: dict[str, Answer] = {}
        self.stuck_steps = 0

    def add(self, *requests: EngineRequest) -> None:
        for request in requests:
            self.scheduler.add(request)
            self.answers[request.request_id] = Answer()

    def step(self) -> SchedulerOutput:
        """One step, with the laws checked around it."""
        step = self.scheduler.schedule()
        check_laws(self.scheduler, step)
        self._check_progress()
        self.tell(self.scheduler.update_from_output(step, self.runner.run(step)))
        check_laws(self.scheduler)
        return step

    def fail(self, name: str, why: str) -> None:
        """One step in which no token can be sampled for a request."""
        step = self.scheduler.schedule()
        done = self.runner.run(step)
        sampled = {other: tokens for other, tokens in done.sampled_token_ids.items() if other != name}
        self.tell(
            self.scheduler.update_from_output(step, replace(done, sampled_token_ids=sampled, failures={name: why}))
        )
        check_laws(self.scheduler)

    def tell(self, outputs: Iterable[EngineCoreOutput]) -> None:
        for output in outputs:
            told = self.answers[output.request_id]
            assert told.finish_reason is None, f"{output.request_id} was told more after its end"
            told.tokens += output.new_token_ids
            told.logprobs += output.new_logprobs
            told.prompt_logprobs += output.new_prompt_logprobs
            told.last = output

    def finish(self, max_steps: int = 2000) -> list[SchedulerOutput]:
        """Step until nothing is left."""
        steps: list[SchedulerOutput] = []
        while self.scheduler.has_unfinished:
            assert len(steps) < max_steps, "the requests do not come to an end"
            steps.append(self.step())
        return steps

    def _check_progress(self) -> None:
        stats = self.scheduler.stats()
        self.stuck_steps = self.stuck_steps + 1 if stats.num_waiting and not stats.num_running else 0
        assert self.stuck_steps <= 1, "requests wait beside free blocks and nothing runs"


def check_tables(kv: KVCacheManager) -> None:
    """References equal table entries, free + used + null = all, and no free block is out of the queue."""
    pool = kv.pool
    entries = Counter(block for group in kv.groups for table in group.tables.values() for block in table)
    for group, spec in zip(kv.groups, kv.config.groups, strict=True):
        for table in group.tables.values():
            left = table.count(0)
            assert not any(table[:left]), "only blocks before the window are given up"
            assert not left or spec.retention.window is not None
            assert len(table) - left <= spec.most_blocks(kv.config.max_step_tokens)
    del entries[0]
    assert [entries[block] for block in range(pool.num_blocks)] == pool.ref_counts
    free = list(pool.free_queue)
    assert len(free) == len(set(free)) == pool.num_free_blocks
    assert set(free) == set(range(1, pool.num_blocks)) - set(entries)


def check_laws(scheduler: Scheduler, step: SchedulerOutput | None = None) -> None:
    """What holds after every call."""
    check_tables(scheduler.kv)
    running, waiting = scheduler._running, list(scheduler._waiting)
    names = [*running, *(request.request_id for request in waiting)]
    assert len(names) == len(set(names)), "a request is in two queues"
    assert set(names) == set(scheduler._requests)
    assert len(running) <= scheduler.config.max_num_seqs
    assert {name for group in scheduler.kv.groups for name in group.tables} <= set(running)
    assert all(request.num_computed_tokens == 0 for request in waiting)
    assert all(0 <= request.num_computed_tokens <= request.num_tokens for request in running.values())
    if step is not None:
        assert step.total_num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
        assert all(count > 0 for count in step.num_scheduled_tokens.values())
        assert set(step.num_scheduled_tokens) == set(running), "a running request is left out of a step"
        assert not (step.new_requests and step.preempted_request_ids), "admitted while others had to go"
