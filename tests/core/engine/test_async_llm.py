"""The front end on an event loop, over an engine in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from headstock.core.engine import AsyncLLMEngine, IterationStats, Prompt
from headstock.core.engine.mailbox import MERGE_AT
from headstock.core.errors import EngineDeadError, InvalidInput
from headstock.core.model import ModelFolder
from headstock.core.outputs import RequestOutput
from headstock.core.params import SamplingParams
from headstock.core.scheduler import EngineRequest
from support.lives import async_client_of, soon
from support.serving import answers
from support.tiny import tiny_engine, tiny_folder, tiny_inputs

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], list(range(100, 117)), [5, 9, 13, 200, 201]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@asynccontextmanager
async def opened(folder: ModelFolder, observer: Any = None, **config: Any) -> AsyncGenerator[AsyncLLMEngine]:
    async with async_client_of("thread", folder, **config) as client:
        engine = AsyncLLMEngine(client, tiny_inputs(folder), observer)
        yield engine
        await engine.close()


def run(folder: ModelFolder, work: Callable[[AsyncLLMEngine], Awaitable[Any]], **config: Any) -> Any:
    """What `work` gives for an engine that is closed afterwards, and has nothing left by then."""

    async def main() -> Any:
        async with opened(folder, **config) as engine:
            result = await soon(work(engine))
            assert (engine.request_ids, engine.num_queued, engine.num_queued_tokens) == ((), 0, 0)
            return result

    return asyncio.run(main())


def prompt(ids: list[int]) -> Prompt:
    return Prompt(token_ids=tuple(ids))


async def collect(engine: AsyncLLMEngine, ids: list[int], params: SamplingParams = GREEDY, **more: Any) -> list[Any]:
    return [output async for output in engine.generate(prompt(ids), params, **more)]


async def at_rest(engine: AsyncLLMEngine) -> None:
    """Until the engine holds no request and no block."""
    while (stats := await engine.client.stats()).num_running or stats.num_waiting or stats.kv_usage:
        await asyncio.sleep(0.005)


def test_many_at_a_time_give_what_they_give_alone(folder: ModelFolder) -> None:
    params = [SamplingParams(temperature=1.0, seed=i, n=1 + i % 3, max_tokens=12) for i in range(len(PROMPTS))]
    expected = [answers(tiny_engine(folder), [p], [q])[0].outputs for p, q in zip(PROMPTS, params, strict=True)]

    async def work(engine: AsyncLLMEngine) -> list[RequestOutput]:
        found = await asyncio.gather(*[collect(engine, p, q) for p, q in zip(PROMPTS, params, strict=True)])
        return [outputs[-1] for outputs in found]

    assert [output.outputs for output in run(folder, work)] == expected


@pytest.mark.parametrize("stalled", [0, 1, 3 * MERGE_AT])
def test_a_slow_reader_of_deltas_misses_nothing_and_holds_back_nobody(folder: ModelFolder, stalled: int) -> None:
    (expected,) = answers(tiny_engine(folder), [PROMPTS[1]], LONG)

    async def work(engine: AsyncLLMEngine) -> tuple[list[RequestOutput], RequestOutput]:
        slow = await engine.add_request(prompt(PROMPTS[1]), LONG, output_kind="delta")
        fast = await engine.add_request(prompt(PROMPTS[1]), LONG, output_kind="delta")
        count = 0
        async for output in fast:
            count += len(output.outputs[0].token_ids)
            if count >= stalled:
                break
        outputs = [output async for output in slow]
        final = [output async for output in fast]
        slow.close()
        fast.close()
        return outputs, final[-1]

    outputs, last = run(folder, work)
    assert last.finished
    assert sum((o.outputs[0].token_ids for o in outputs), ()) == expected.outputs[0].token_ids
    assert "".join(o.outputs[0].text for o in outputs) == expected.outputs[0].text
    assert len(outputs) <= 200 - stalled + 1


def test_a_reader_that_comes_late_gets_one_output_of_everything(folder: ModelFolder) -> None:
    async def work(engine: AsyncLLMEngine) -> list[list[RequestOutput]]:
        kinds = ("delta", "cumulative", "final")
        streams = [await engine.add_request(prompt(PROMPTS[0]), GREEDY, output_kind=kind) for kind in kinds]
        await at_rest(engine)
        found = [[output async for output in stream] for stream in streams]
        for stream in streams:
            stream.close()
        return found

    found = run(folder, work)
    assert [len(outputs) for outputs in found] == [1, 1, 1]
    assert len({outputs[0].outputs[0].token_ids for outputs in found}) == 1


@pytest.mark.parametrize("outputs_read", [0, 1, 3])
@pytest.mark.parametrize("how", ["cancel", "leave"])
@pytest.mark.parametrize("n", [1, 3])
def test_whoever_goes_away_takes_the_request_along(folder: ModelFolder, how: str, outputs_read: int, n: int) -> None:
    params = SamplingParams(temperature=1, seed=1, n=n, max_tokens=200, ignore_eos=True)

    async def work(engine: AsyncLLMEngine) -> None:
        reached = asyncio.Event()

        async def read() -> None:
            async with aclosing(engine.generate(prompt(PROMPTS[1]), params)) as outputs:
                count = 0
                while count < outputs_read:
                    await anext(outputs)
                    count += 1
                reached.set()
                if how == "cancel":
                    async for _ in outputs:
                        pass

        task = asyncio.create_task(read())
        await reached.wait()
        if how == "cancel":
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await at_rest(engine)
        assert (await collect(engine, PROMPTS[0]))[-1].finished

    run(folder, work)


def test_an_abort_by_id_tells_the_reader_and_unknown_ids_are_ignored(folder: ModelFolder) -> None:
    async def work(engine: AsyncLLMEngine) -> RequestOutput:
        stream = await engine.add_request(prompt(PROMPTS[1]), LONG, request_id="mine")
        await anext(stream)
        await engine.abort(["mine", "mine", "nobody's"])
        outputs = [output async for output in stream]
        stream.close()
        await at_rest(engine)
        return outputs[-1]

    last = run(folder, work)
    assert last.request_id == "mine"
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
    assert last.outputs[0].token_ids


def test_a_deadline_ends_a_request_with_what_it_has(folder: ModelFolder) -> None:
    async def work(engine: AsyncLLMEngine) -> RequestOutput:
        await engine.client.pause("keep")  # so it cannot finish before
        output = (await collect(engine, PROMPTS[1], LONG, deadline=0.05))[-1]
        await engine.client.resume()
        await at_rest(engine)
        return output

    last = run(folder, work)
    assert last.outputs[0].finish_reason == "abort"
    assert "deadline of 0.05 s" in (last.outputs[0].error or "")


def test_a_deadline_that_is_kept_says_nothing(folder: ModelFolder) -> None:
    (output,) = run(folder, lambda engine: collect(engine, PROMPTS[0], deadline=60, output_kind="final"))
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), 1e10, 10**400, True, "soon"])
def test_a_deadline_must_be_seconds(folder: ModelFolder, deadline: Any) -> None:
    async def work(engine: AsyncLLMEngine) -> str:
        with pytest.raises(InvalidInput) as refused:
            await collect(engine, PROMPTS[0], deadline=deadline)
        return refused.value.field

    assert run(folder, work) == "deadline"


@pytest.mark.parametrize(
    "wrong",
    [
        {"output_kind": "deltas"},
        {"output_kind": None},
        {"output_kind": ["delta"]},
        {"request_id": 7},
        {"request_id": "\ud800"},
        {"priority": 0.5},
        {"priority": 1},
    ],
)
def test_what_comes_with_a_prompt_is_checked_and_leaves_nothing(folder: ModelFolder, wrong: dict[str, Any]) -> None:
    async def work(engine: AsyncLLMEngine) -> str:
        with pytest.raises(InvalidInput) as refused:
            await collect(engine, PROMPTS[0], **wrong)
        await at_rest(engine)
        assert len(await collect(engine, PROMPTS[0], output_kind="final")) == 1
        return refused.value.field

    assert run(folder, work) == next(iter(wrong))


@pytest.mark.parametrize("params", [{"max_tokens": 3}, {}, 7])
def test_sampling_parameters_are_sampling_parameters(folder: ModelFolder, params: Any) -> None:
    async def work(engine: AsyncLLMEngine) -> str:
        with pytest.raises(InvalidInput) as refused:
            await collect(engine, PROMPTS[0], params)
        return refused.value.field

    assert run(folder, work) == "sampling_params"


def test_a_refused_request_leaves_nothing_and_the_next_is_served(folder: ModelFolder) -> None:
    async def work(engine: AsyncLLMEngine) -> list[str]:
        fields = []
        for ids, params in (([-1], GREEDY), ([1] * 16, GREEDY), ([1], SamplingParams(stop_token_ids=[10**6]))):
            with pytest.raises(InvalidInput) as refused:
                await collect(engine, ids, params)
            fields.append(refused.value.field)
        assert (await collect(engine, PROMPTS[0]))[-1].finished
        return fields

    assert run(folder, work, max_model_len=16) == ["prompt_token_ids", "prompt", "stop_token_ids"]


def test_an_id_in_use_is_refused(folder: ModelFolder) -> None:
    async def work(engine: AsyncLLMEngine) -> None:
        stream = await engine.add_request(prompt(PROMPTS[0]), GREEDY, request_id="mine")
        with pytest.raises(InvalidInput, match="is running"):
            await engine.add_request(prompt(PROMPTS[0]), GREEDY, request_id="mine")
        assert [output async for output in stream][-1].outputs[0].finish_reason == "length"
        stream.close()
        assert (await collect(engine, PROMPTS[0], request_id="mine"))[-1].finished

    run(folder, work)


def test_a_failure_between_completions_takes_all_of_them_back(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(engine: AsyncLLMEngine) -> None:
        original, taken = engine.client.add_request, []

        async def refuse_the_third(request: EngineRequest) -> None:
            if len(taken) == 2:
                raise InvalidInput("n", "enough")
            taken.append(request.request_id)
            await original(request)

        with monkeypatch.context() as patch:
            patch.setattr(engine.client, "add_request", refuse_the_third)
            with pytest.raises(InvalidInput, match="enough"):
                await collect(engine, PROMPTS[1], SamplingParams(n=4, max_tokens=200, ignore_eos=True))
        assert not engine.request_ids
        await at_rest(engine)

    run(folder, work)


def test_death_reaches_everybody_who_waits_and_who_comes(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(folder) as engine:
            await engine.client.pause("keep")
            waiting = [asyncio.create_task(collect(engine, p, LONG)) for p in PROMPTS]
            while len(engine.request_ids) < len(PROMPTS):
                await asyncio.sleep(0)
            died = asyncio.create_task(engine.died())
            engine.client.close()
            for task in waiting:
                with pytest.raises(EngineDeadError):
                    await soon(task)
            assert isinstance(await soon(died), EngineDeadError)
            with pytest.raises(EngineDeadError):
                await collect(engine, PROMPTS[0])
            assert not engine.request_ids

    asyncio.run(main())


def test_queued_requests_are_counted_until_their_first_token(folder: ModelFolder) -> None:
    async def work(engine: AsyncLLMEngine) -> tuple[int, int]:
        await engine.client.pause("keep")
        streams = [
            await engine.add_request(prompt(PROMPTS[1]), SamplingParams(n=n, max_tokens=4, ignore_eos=True))
            for n in (1, 2)
        ]
        counts = engine.num_queued, engine.num_queued_tokens
        await engine.client.resume()
        for stream in streams:
            async for _ in stream:
                pass
            stream.close()
        return counts

    assert run(folder, work) == (3, 60)


class Ledger:
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.tokens = self.prompt_tokens = 0
        self.ttfts: list[float] = []
        self.itls: list[float] = []
        self.reasons: list[str] = []

    def observe(self, stats: IterationStats) -> None:
        self.tokens += stats.num_generation_tokens
        self.prompt_tokens += stats.num_prompt_tokens
        self.ttfts += stats.first_token_latencies
        self.itls += stats.inter_token_latencies
        self.reasons += [finished.finish_reason for finished in stats.finished]


def test_the_observer_is_told_of_every_token_and_every_end(folder: ModelFolder) -> None:
    ledger = Ledger()

    async def work(engine: AsyncLLMEngine) -> None:
        await collect(engine, PROMPTS[0], SamplingParams(n=3, temperature=1, seed=1, max_tokens=5, ignore_eos=True))
        async with aclosing(engine.generate(prompt(PROMPTS[1]), LONG)) as outputs:
            await anext(outputs)

    run(folder, work, observer=ledger)
    assert ledger.reasons == ["length"] * 3 + ["abort"]
    assert ledger.prompt_tokens == len(PROMPTS[0]) + len(PROMPTS[1])
    assert len(ledger.ttfts) == 4
    assert len(ledger.itls) == ledger.tokens - 4 >= 12
    assert all(t >= 0 for t in ledger.ttfts + ledger.itls)
