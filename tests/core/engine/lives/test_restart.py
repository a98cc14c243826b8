"""An engine that is started again, and several of which one dies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time

import pytest

from headstock.core.engine import (
    AsyncRemoteClient,
    EnginePort,
    LoopPort,
    ProcessCarrier,
    RemoteClient,
    RestartingPort,
    RouterPort,
    ThreadCarrier,
)
from headstock.core.engine.lives import restart as module
from headstock.core.errors import EngineClosedError, EngineDeadError, ModelError
from headstock.core.model import ModelFolder
from support.lives import PATIENCE, launch, open_port, request, run, run_async, soon
from support.tiny import tiny_core, tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


class Maker:
    """Starts engines in threads; the next waits until it is let."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder
        self.made: list[LoopPort[ThreadCarrier]] = []
        self.let = threading.Event()
        self.let.set()
        self.problem: Exception | None = None

    def __call__(self) -> EnginePort:
        self.let.wait()
        if self.problem is not None:
            raise self.problem
        port = LoopPort(ThreadCarrier(tiny_core(self.folder)))
        self.made.append(port)
        return port

    def kill_last(self, reason: str) -> None:
        """Let the newest engine die as one does whose step raises."""
        self.made[-1].carrier.desk.end(EngineDeadError(f"the engine has died: {reason}"))


def test_requests_of_a_dead_engine_fail_clearly_and_health_returns(folder: ModelFolder) -> None:
    async def serve() -> None:
        maker = Maker(folder)
        port = RestartingPort(maker)
        client = AsyncRemoteClient(port)
        expected = await run_async(client, [request("a", [5, 9, 13])])
        await client.pause("keep")
        for i in range(3):
            await client.add_request(request(f"b{i}", [1, 2, 3]))
        maker.let.clear()
        maker.kill_last("by fire")
        lost = await soon(client.get_outputs())
        assert [(o.request_id, o.finish_reason) for o in lost] == [(f"b{i}", "error") for i in range(3)]
        assert all("by fire" in (o.error or "") and "send the request again" in (o.error or "") for o in lost)
        with pytest.raises(EngineDeadError, match="being started again"):
            client.check_health()
        with pytest.raises(EngineDeadError, match="being started again"):
            await client.add_request(request("c", [1]))
        maker.let.set()
        while port.dead is not None:
            await asyncio.sleep(0.01)
        client.check_health()
        assert await run_async(client, [request("d", [5, 9, 13])]) == {"d": expected["a"]}
        await asyncio.to_thread(port.close)
        assert len(maker.made) == 2

    asyncio.run(serve())


def test_an_engine_that_dies_again_and_again_stays_dead(folder: ModelFolder) -> None:
    maker = Maker(folder)
    port = RestartingPort(maker)
    client = RemoteClient(port)
    for life in range(1, module.MOST + 1):
        maker.kill_last(f"time {life}")
        _until_alive(port)
    maker.kill_last("for good")
    with pytest.raises(EngineDeadError, match="for good"):
        client.get_outputs()
    with pytest.raises(EngineDeadError, match="for good"):
        client.add_request(request("a", [1]))
    port.close()


def test_one_that_cannot_be_started_again_says_so(folder: ModelFolder) -> None:
    maker = Maker(folder)
    port = RestartingPort(maker)
    client = RemoteClient(port)
    maker.problem = ModelError("the weights have gone")
    maker.kill_last("by fire")
    with pytest.raises(EngineDeadError, match="could not be started again: the weights have gone"):
        client.get_outputs()
    port.close()


def _until_alive(port: EnginePort) -> None:
    alive = threading.Event()
    while not alive.wait(0.01):
        if port.dead is None:
            alive.set()


def test_a_killed_process_comes_back(folder: ModelFolder) -> None:
    port = RestartingPort(lambda: LoopPort(ProcessCarrier(launch(folder))))
    first = port._port
    assert isinstance(first, LoopPort)
    client = RemoteClient(port)
    expected = run(client, [request("a", [5, 9, 13])])["a"]
    client.pause("keep")
    client.add_request(request("b", [1]))
    os.kill(first.carrier.pid, signal.SIGKILL)
    (lost,) = client.get_outputs()
    assert (lost.request_id, lost.finish_reason) == ("b", "error")
    _until_alive(port)
    assert run(client, [request("c", [5, 9, 13])])["c"] == expected
    client.close()


def test_the_end_of_its_owner_is_no_death(folder: ModelFolder) -> None:
    """As at the interpreter's end, when every engine that is left is closed."""
    maker = Maker(folder)
    port = RestartingPort(maker)
    client = RemoteClient(port)
    maker.made[0].close()
    with pytest.raises(EngineClosedError):
        client.get_outputs()
    port.close()
    assert len(maker.made) == 1


@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [RemoteClient, AsyncRemoteClient])
def test_engines_end_with_whoever_uses_them(
    folder: ModelFolder, restarting: bool, count: int, kind: type[RemoteClient | AsyncRemoteClient]
) -> None:
    """Nobody has closed anything."""
    maker = Maker(folder)
    make = (lambda: RestartingPort(maker)) if restarting else maker
    client = kind(RouterPort.open([make] * count))
    work = [request("a", [5, 9])]
    fates = run(client, work) if isinstance(client, RemoteClient) else asyncio.run(run_async(client, work))
    assert fates["a"][1] == "length"
    carriers = [port.carrier for port in maker.made]
    maker.made.clear()
    del client
    ends = time.monotonic() + PATIENCE
    while not all(carrier.desk.dead for carrier in carriers) and time.monotonic() < ends:
        gc.collect()  # again, as a thread may just be telling news
    assert [type(carrier.desk.dead) for carrier in carriers] == [EngineClosedError] * count


@pytest.mark.parametrize("life", ["thread", "process"])
def test_the_last_to_hold_an_engine_may_be_its_own_thread(
    folder: ModelFolder, life: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", problems.append)
    port = open_port(life, folder)
    assert isinstance(port, LoopPort)
    held, carrier, let = [port], port.carrier, threading.Event()

    def drop(_: object) -> None:
        let.wait(PATIENCE)
        held.clear()

    port.listen(drop)
    port.add(request("a", [5]))
    del port
    let.set()
    carrier._thread.join(PATIENCE)
    assert isinstance(carrier.desk.dead, EngineClosedError)
    assert problems == []


def test_the_death_of_one_of_two_engines_is_told_with_its_number(folder: ModelFolder) -> None:
    makers = [Maker(folder), Maker(folder)]
    client = RemoteClient(RouterPort.open(makers))
    client.pause("keep")
    for i in range(4):
        client.add_request(request(f"r{i}", [1, 2, 3]))
    makers[1].kill_last("by fire")
    with pytest.raises(EngineDeadError, match=r"engine 1 of 2: .*by fire"):
        client.get_outputs()
    with pytest.raises(EngineDeadError):
        client.add_request(request("late", [1]))
    client.close()


def test_where_one_engine_does_not_start_none_is_left(folder: ModelFolder) -> None:
    fine, broken = Maker(folder), Maker(folder)
    broken.problem = ModelError("the weights have gone")
    with pytest.raises(ModelError, match="weights have gone"):
        RouterPort.open([fine, broken])
    assert fine.made[0].dead is not None
