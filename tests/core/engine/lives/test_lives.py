"""What every life of the engine does alike: the same workload, the same tokens, over real threads and processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Generator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from headstock.core.engine import (
    AsyncRemoteClient,
    EngineClient,
    EnginePort,
    InprocClient,
    LoopPort,
    RemoteClient,
    RouterPort,
)
from headstock.core.errors import HeadstockError, InvalidInput
from headstock.core.model import ModelFolder
from headstock.core.scheduler import EngineRequest
from support.lives import Fates, gather, open_port, request, run, run_async
from support.tiny import tiny_core, tiny_folder

RAY = pytest.param("two ray actors", marks=pytest.mark.heavy)
REMOTE = ["thread", "process", "two threads", "two processes", RAY]
CONFIG = {"max_num_batched_tokens": 16, "max_model_len": 240, "block_size": 4}
ROUNDS = itertools.count()
"""Request ids are never used twice."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


class Ports(dict[str, EnginePort]):
    """One engine of each life for the whole module: to start one takes longer than all that is asked of it."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder

    def __missing__(self, life: str) -> EnginePort:
        port = self[life] = open_port(life, self._folder, **CONFIG)
        return port


@pytest.fixture(scope="module")
def ports(folder: ModelFolder) -> Generator[Ports]:
    ports = Ports(folder)
    yield ports
    for port in ports.values():
        port.close()


@pytest.fixture(scope="module")
def inproc(folder: ModelFolder) -> InprocClient:
    return InprocClient(tiny_core(folder, **CONFIG))


@pytest.fixture(params=["inproc", *REMOTE])
def client(request: pytest.FixtureRequest, inproc: InprocClient, ports: Ports) -> EngineClient:
    return inproc if request.param == "inproc" else RemoteClient(ports[request.param])


@pytest.fixture(params=REMOTE)
def port(request: pytest.FixtureRequest, ports: Ports) -> EnginePort:
    return ports[request.param]


def workload() -> list[EngineRequest]:
    """Greedy and seeded requests, short and chunked ones, with ids of their own: ``r0-17``, ``r1-17``…"""
    prompts = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], list(range(100, 117)), [5, 9, 13, 200, 201]]
    turn = next(ROUNDS)
    return [
        request(f"r{i}-{turn}", prompt, **({"temperature": 1.0, "top_p": 0.9, "seed": i} if i % 2 else {}))
        for i, prompt in enumerate(prompts)
    ]


def plain(fates: Fates) -> Fates:
    """Without the numbers of the turn."""
    return {name.partition("-")[0]: fate for name, fate in fates.items()}


@pytest.fixture(scope="module")
def expected(folder: ModelFolder) -> Fates:
    """Each request by itself."""
    client = InprocClient(tiny_core(folder))
    return {name: fate for each in workload() for name, fate in plain(run(client, [each])).items()}


def test_every_life_gives_the_same_tokens(client: EngineClient, expected: Fates) -> None:
    assert plain(run(client, workload())) == expected
    assert plain(run(client, workload())) == expected
    stats = client.stats()
    assert (stats.kv_usage, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert stats.prefix_cache.num_hit_tokens > 0
    assert client.reset_prefix_cache()


def test_so_does_asyncio(port: EnginePort, expected: Fates) -> None:
    async def serve() -> tuple[Fates, float]:
        client = AsyncRemoteClient(port)
        client.check_health()
        return plain(await run_async(client, workload())), (await client.stats()).kv_usage

    assert asyncio.run(serve()) == (expected, 0)


def test_info_is_the_same_everywhere(client: EngineClient, inproc: InprocClient) -> None:
    count = client.info.num_engines
    assert (client.info.max_model_len, client.info.block_size) == (240, 4)
    one = inproc.info
    assert client.info == replace(
        one, num_engines=count, num_blocks=count * one.num_blocks, max_num_seqs=count * one.max_num_seqs
    )


@pytest.mark.parametrize("life", ["two threads", "two processes", RAY])
def test_two_engines_share_the_work(ports: Ports, life: str, expected: Fates) -> None:
    port = ports[life]
    assert isinstance(port, RouterPort)
    before = [one.call("stats").result() for one in port.ports]
    client = RemoteClient(port)
    assert plain(run(client, [replace(each, session=None) for each in workload()])) == expected
    after = [one.call("stats").result() for one in port.ports]
    assert all(b.num_steps > a.num_steps for a, b in zip(before, after, strict=True))
    assert client.stats().num_steps == sum(one.num_steps for one in after)
    if life != "two threads":
        assert len({one.carrier.pid for one in port.ports if isinstance(one, LoopPort)} - {os.getpid()}) == 2


def test_refusals_name_the_field_and_leave_nothing(client: EngineClient, expected: Fates) -> None:
    turn = next(ROUNDS)
    for prompt, words in (([3] * 240, "max_model_len"), ([], "empty")):
        with pytest.raises(InvalidInput, match=words) as refused:
            client.add_request(request(f"x-{turn}", prompt))
        assert refused.value.field == "prompt"
    assert not client.has_unfinished_requests()
    client.add_request(request(f"twice-{turn}", [9] * 9))
    with pytest.raises(InvalidInput, match="still runs") as refused:
        client.add_request(request(f"twice-{turn}", [1]))
    assert refused.value.field == "request_id"
    client.abort_requests([f"twice-{turn}"])
    assert plain(run(client, workload())) == expected


def test_refusals_reach_asyncio(port: EnginePort, expected: Fates) -> None:
    async def serve() -> Fates:
        client, turn = AsyncRemoteClient(port), next(ROUNDS)
        with pytest.raises(InvalidInput, match="max_model_len"):
            await client.add_request(request(f"x-{turn}", [3] * 240))
        await client.add_request(request(f"twice-{turn}", [9] * 9, max_tokens=100))
        with pytest.raises(InvalidInput, match="still runs"):
            await client.add_request(request(f"twice-{turn}", [1]))
        await client.abort_requests([f"twice-{turn}", f"twice-{turn}", "nobody"])
        return plain(await run_async(client, workload()))

    assert asyncio.run(serve()) == expected


def test_the_longest_prompt_gets_one_token(client: EngineClient) -> None:
    turn = next(ROUNDS)
    tokens, reason = run(client, [request(f"y-{turn}", [3] * 239)])[f"y-{turn}"]
    assert (len(tokens), reason) == (1, "length")


def test_aborts_at_any_time_are_harmless_and_leave_no_block(client: EngineClient, expected: Fates) -> None:
    turn = next(ROUNDS)
    ids = [f"long{i}-{turn}" for i in range(3)]
    for each in [*(request(i, range(200), max_tokens=40) for i in ids), *workload()]:
        client.add_request(each)
    fates: Fates = {}
    gather(client.get_outputs(), fates)  # of a step that had the first of them in mid-prefill, or before it
    ended = client.abort_requests([ids[0], "nobody", ids[0]])
    assert [(o.request_id, o.finish_reason) for o in ended] == [(ids[0], "abort")]
    assert client.abort_requests(ids[:1]) == []
    client.abort_requests(ids[1:])
    while client.has_unfinished_requests():
        gather(client.get_outputs(), fates)
    assert {name: fate for name, fate in plain(fates).items() if "long" not in name} == expected
    assert client.stats().kv_usage == 0


def test_a_pause_that_waits_lets_requests_finish(client: EngineClient, expected: Fates) -> None:
    here, later = workload(), replace(workload()[0], request_id=f"later-{next(ROUNDS)}")
    for each in here:
        client.add_request(each)
    client.pause("wait")
    steps = client.stats().num_steps
    client.add_request(later)
    assert client.stats().num_steps == steps
    fates: Fates = {}
    while sum(reason is not None for _, reason in fates.values()) < len(here):
        gather(client.get_outputs(), fates)
    client.resume()
    fates.update(run(client))
    assert plain(fates) == {**expected, "later": expected["r0"]}


def test_a_pause_that_aborts_tells_every_request_and_then_the_engine_can_sleep(
    client: EngineClient, expected: Fates
) -> None:
    turn = next(ROUNDS)
    ids = [f"a-{turn}", f"b-{turn}"]
    for i in ids:
        client.add_request(request(i, range(100), max_tokens=100))
    if not isinstance(client, InprocClient):
        with pytest.raises(HeadstockError, match="pause it first"):
            client.sleep()
    client.pause("abort")
    assert {i: reason for i, (_, reason) in run(client).items()} == dict.fromkeys(ids, "abort")
    client.sleep(2)
    again = workload()
    for each in again:
        client.add_request(each)
    client.wake_up()
    client.resume()
    assert plain(run(client)) == expected


def test_what_the_engine_refuses_of_a_call_comes_back_as_it_was_raised(client: EngineClient) -> None:
    with pytest.raises(InvalidInput, match="abort, wait, keep") as refused:
        client.pause("never")  # type: ignore[arg-type]
    assert refused.value.field == "mode"
    with pytest.raises(InvalidInput, match="level"):
        client.sleep(7)


def test_large_news_arrive_whole_though_nobody_reads_for_long(client: EngineClient, inproc: InprocClient) -> None:
    """Hundreds of kilobytes of log probabilities a request, all sent before the first is looked at."""

    def serve(client: EngineClient, *, late: bool) -> dict[str, NDArray[np.float64]]:
        turn = next(ROUNDS)
        for i in range(4):
            name, prompt = f"r{i}-{turn}", range(i, i + 120)
            client.add_request(request(name, prompt, prompt_logprobs=-1, logprobs=-1, max_tokens=2))
        while late and (stats := client.stats()).num_running + stats.num_waiting:
            continue
        told: dict[str, list[list[float]]] = {}
        while client.has_unfinished_requests():
            for output in client.get_outputs():
                for entry in (*output.new_prompt_logprobs, *output.new_logprobs):
                    by_token = dict(zip(entry.token_ids, entry.logprobs, strict=True))
                    told.setdefault(output.request_id.partition("-")[0], []).append(
                        [by_token[token] for token in range(client.info.vocab_size)]
                    )
        return {name: np.array(rows) for name, rows in told.items()}

    expected = serve(inproc, late=False)
    assert [rows.shape for rows in expected.values()] == [(119 + 2, client.info.vocab_size)] * 4
    if client is not inproc:
        found = serve(client, late=True)
        assert found.keys() == expected.keys()
        assert all(np.allclose(found[name], expected[name], atol=1e-3) for name in expected)


def test_two_hundred_requests_of_mixed_fate_leave_nothing(client: EngineClient, expected: Fates) -> None:
    rng, turn = random.Random(7), next(ROUNDS)
    fates: Fates = {}
    kinds: dict[str, str] = {}
    for number in range(200):
        kind = rng.choice(["finish", "stop", "error", "abort"])
        name = f"{kind}{number}-{turn}"
        extra = {
            "finish": {},
            "stop": {"stop_token_ids": [155, 248, 15], "max_tokens": 40},
            "error": {"allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 2},
            "abort": {"max_tokens": 60},
        }[kind]
        client.add_request(request(name, [rng.randrange(250) for _ in range(rng.choice([1, 5, 40]))], **extra))
        kinds[name] = kind
        if number % 4 == 0:
            for each in client.abort_requests([n for n, k in kinds.items() if k == "abort" and rng.random() < 0.3]):
                gather([each], fates)
            gather(client.get_outputs(), fates)
    gather(client.abort_requests([name for name, kind in kinds.items() if kind == "abort"]), fates)
    while client.has_unfinished_requests():
        gather(client.get_outputs(), fates)
    allowed = {"finish": {"length"}, "stop": {"stop", "length"}, "error": {"error"}, "abort": {"abort", "length"}}
    assert fates.keys() == kinds.keys()
    assert all(fates[name][1] in allowed[kind] for name, kind in kinds.items())
    assert client.stats().kv_usage == 0
    assert plain(run(client, workload())) == expected
