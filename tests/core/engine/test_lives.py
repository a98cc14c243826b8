"""What every life of the engine does alike: the same workload, the same tokens, over real threads and processes."""

from __future__ import annotations

import asyncio

import pytest

from headstock.core.engine import AsyncRemoteClient, EngineClient, RemoteClient
from headstock.core.errors import EngineDeadError, InvalidInput
from headstock.core.model import ModelFolder
from headstock.core.scheduler import EngineRequest
from support.lives import Fates, async_client_of, client_of, gather, open_port, request, run, run_async, soon
from support.tiny import tiny_folder

LIVES = ["inproc", "thread"]
REMOTE = LIVES[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def workload() -> list[EngineRequest]:
    """Greedy and seeded requests, short and chunked ones."""
    prompts = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], list(range(100, 117)), [5, 9, 13, 200, 201]]
    return [
        request(f"r{i}", prompt, **({"temperature": 1.0, "top_p": 0.9, "seed": i} if i % 2 else {}))
        for i, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def expected(folder: ModelFolder) -> Fates:
    """Each request by itself."""
    fates: Fates = {}
    with client_of("inproc", folder) as client:
        for each in workload():
            fates.update(run(client, [each]))
    return fates


@pytest.mark.parametrize("life", LIVES)
def test_every_life_gives_the_same_tokens(folder: ModelFolder, expected: Fates, life: str) -> None:
    with client_of(life, folder, max_num_batched_tokens=16) as client:
        assert run(client, workload()) == expected
        assert run(client, workload()) == expected
        stats = client.stats()
        assert (stats.kv_usage, stats.num_running, stats.num_waiting) == (0, 0, 0)
        assert stats.prefix_cache.num_hit_tokens > 0
        assert client.reset_prefix_cache()


@pytest.mark.parametrize("life", REMOTE)
def test_so_does_asyncio(folder: ModelFolder, expected: Fates, life: str) -> None:
    async def serve() -> tuple[Fates, float]:
        async with async_client_of(life, folder, max_num_batched_tokens=16) as client:
            return await run_async(client, workload()), (await client.stats()).kv_usage

    assert asyncio.run(serve()) == (expected, 0)


@pytest.mark.parametrize("life", LIVES)
def test_refusals_name_the_field_and_leave_nothing(folder: ModelFolder, expected: Fates, life: str) -> None:
    with client_of(life, folder, max_model_len=64) as client:
        for wrong, words in ((request("x", [3] * 64), "max_model_len"), (request("x", []), "empty")):
            with pytest.raises(InvalidInput, match=words) as refused:
                client.add_request(wrong)
            assert refused.value.field == "prompt"
        assert not client.has_unfinished_requests()
        client.add_request(request("twice", [9] * 9))
        with pytest.raises(InvalidInput, match="still runs") as refused:
            client.add_request(request("twice", [1]))
        assert refused.value.field == "request_id"
        client.abort_requests(["twice"])
        assert run(client, workload()) == expected


@pytest.mark.parametrize("life", LIVES)
def test_the_longest_prompt_that_a_small_cache_admits_is_told(folder: ModelFolder, life: str) -> None:
    with client_of(life, folder, block_size=4, kv_cache_memory_bytes=2**14) as client:
        longest = client.info.max_model_len - 1
        assert 0 < longest < 40
        with pytest.raises(InvalidInput, match="max_model_len"):
            client.add_request(request("x", [3] * (longest + 1)))
        tokens, reason = run(client, [request("y", [3] * longest)])["y"]
        assert (len(tokens), reason) == (1, "length")


@pytest.mark.parametrize("life", LIVES)
def test_aborts_at_any_time_are_harmless_and_leave_no_block(folder: ModelFolder, expected: Fates, life: str) -> None:
    with client_of(life, folder, max_num_batched_tokens=16) as client:
        long = [request(f"long{i}", range(200), max_tokens=40) for i in range(3)]
        for each in long:
            client.add_request(each)
        for each in workload():
            client.add_request(each)
        client.get_outputs()  # of a step in which the first of them is in mid-prefill
        ended = client.abort_requests(["long0", "nobody", "long0"])
        assert [(o.request_id, o.finish_reason) for o in ended] == [("long0", "abort")]
        assert client.abort_requests(["long0"]) == []
        client.abort_requests(["long1", "long2"])
        assert run(client) == expected
        assert client.stats().kv_usage == 0


@pytest.mark.parametrize("life", REMOTE)
def test_a_task_that_waits_is_woken_by_the_end(folder: ModelFolder, life: str) -> None:
    async def serve() -> None:
        client = AsyncRemoteClient(open_port(life, folder))
        client.check_health()
        waiting = asyncio.create_task(client.get_outputs())
        await asyncio.sleep(0)
        await asyncio.to_thread(client.close)
        client.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await soon(waiting)
        with pytest.raises(EngineDeadError):
            client.check_health()
        with pytest.raises(EngineDeadError):
            await client.add_request(request("late", [1]))
        with pytest.raises(EngineDeadError):
            await client.stats()

    asyncio.run(serve())


@pytest.mark.parametrize("life", LIVES)
def test_pauses_reach_every_life(folder: ModelFolder, expected: Fates, life: str) -> None:
    with client_of(life, folder, max_num_batched_tokens=16) as client:
        for each in workload():
            client.add_request(each)
        client.pause("wait")
        steps = client.stats().num_steps
        later = request("later", [5, 9, 13])
        client.add_request(later)
        assert client.stats().num_steps == steps
        fates = _until(client, set(expected))
        client.resume()
        fates.update(run(client))
        assert fates.pop("later") == expected["r0"]
        assert fates == expected


def _until(client: EngineClient, wanted: set[str]) -> Fates:
    fates: Fates = {}
    while wanted - {i for i, (_, reason) in fates.items() if reason}:
        gather(client.get_outputs(), fates)
    return fates


@pytest.mark.parametrize("life", REMOTE)
def test_an_aborting_pause_tells_every_request(folder: ModelFolder, life: str) -> None:
    with client_of(life, folder) as client:
        assert isinstance(client, RemoteClient)
        for each in (request("a", range(100), max_tokens=100), request("b", [1], max_tokens=100)):
            client.add_request(each)
        client.pause("abort")
        assert {i: reason for i, (_, reason) in run(client).items()} == {"a": "abort", "b": "abort"}
        client.sleep(2)
        client.add_request(request("c", [5, 9, 13]))
        client.wake_up()
        client.resume()
        assert run(client)["c"][1] == "length"


class Broken(Exception):
    """Not one of ours."""


def test_a_step_that_raises_ends_the_engine_for_everybody(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from headstock.core.worker.worker import Worker

    def fail(self: Worker, output: object) -> None:
        raise Broken("the card has fallen out")

    async def serve() -> None:
        async with async_client_of("thread", folder) as client:
            monkeypatch.setattr(Worker, "execute_model", fail)
            await client.add_request(request("a", [1]))
            with pytest.raises(EngineDeadError, match="fallen out") as died:
                await soon(client.get_outputs())
            assert "execute_model" in died.value.details
            with pytest.raises(EngineDeadError, match="fallen out"):
                client.check_health()

    asyncio.run(serve())
