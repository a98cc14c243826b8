"""However an engine ends, everybody who waits is told within seconds, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headstock.core.engine import AsyncRemoteClient, EnginePort, LoopPort, ProcessCarrier, RemoteClient, Vigil
from headstock.core.engine.lives.codec import Ready, Setup, encode_word
from headstock.core.engine.lives.handshake import check_ready, digest, read_setup
from headstock.core.engine.lives.pulse import Beat
from headstock.core.engine.lives.sockets import socket_folder
from headstock.core.errors import BackendError, EngineDeadError, HeadstockError
from headstock.core.model import ModelFolder
from headstock.core.scheduler import EngineCoreOutput
from headstock.core.worker.worker import Worker
from support.lives import PATIENCE, launch, open_port, request, run, run_async, soon
from support.tiny import tiny_core, tiny_folder

SECONDS = 5.0
"""Within which everybody is told."""
SLACK = 15.0
"""More of them, since others may have the processors."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@contextmanager
def process(folder: ModelFolder, composer: str = "compose", **options: object) -> Generator[LoopPort[ProcessCarrier]]:
    port = LoopPort(ProcessCarrier(launch(folder, composer=f"support.lives:{composer}", **options)))
    try:
        yield port
    finally:
        port.close()


def left_behind(pid: int) -> list[str]:
    """What is still there of an engine process and of this process's sockets."""
    sockets = [path.name for path in socket_folder().glob(f"{os.getpid()}-*")]
    return [*sockets, *([f"process {pid}"] if psutil.pid_exists(pid) else [])]


@pytest.mark.parametrize(
    ("fate", "words"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGSTOP, "stopped")],
    ids=["killed", "crashed", "stopped"],
)
def test_everybody_who_waits_is_told(folder: ModelFolder, fate: signal.Signals, words: str) -> None:
    async def serve() -> None:
        with process(folder) as port:
            client = AsyncRemoteClient(port)
            assert (await run_async(client, [request("a", [1])]))["a"][1] == "length"
            await client.pause("keep")
            for i in range(3):
                await client.add_request(request(f"b{i}", [1, 2, 3]))
            waiting = asyncio.create_task(client.get_outputs())
            await asyncio.sleep(0)
            begun = time.monotonic()
            os.kill(port.carrier.pid, fate)
            calling = asyncio.create_task(client.stats())
            with pytest.raises(EngineDeadError, match=words):
                await soon(waiting)
            assert time.monotonic() - begun < SECONDS + SLACK
            with pytest.raises(EngineDeadError):
                client.check_health()
            for late in (client.add_request(request("late", [1])), client.stats(), client.get_outputs()):
                with pytest.raises(EngineDeadError, match=words):
                    await soon(late)
            with pytest.raises(EngineDeadError):
                await soon(calling)
            await client.abort_requests(["b0"])
            await asyncio.to_thread(port.close)
            assert left_behind(port.carrier.pid) == []

    asyncio.run(serve())


def test_threads_that_wait_are_told_too(folder: ModelFolder) -> None:
    with process(folder) as port:
        client = RemoteClient(port)
        client.pause("keep")
        client.add_request(request("a", [1]))
        told: list[BaseException] = []

        def wait() -> None:
            try:
                client.get_outputs()
            except EngineDeadError as error:
                told.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        os.kill(port.carrier.pid, signal.SIGKILL)
        thread.join(PATIENCE)
        assert "SIGKILL" in str(told[0])
        assert client.has_unfinished_requests()
        with pytest.raises(EngineDeadError):
            client.get_outputs()
        assert client.abort_requests(["a"]) == [EngineCoreOutput(request_id="a", finish_reason="abort")]


@pytest.mark.parametrize("life", ["thread", "process"])
def test_a_step_that_raises_ends_the_engine_with_its_traceback(
    folder: ModelFolder, life: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(port: EnginePort) -> None:
        client = AsyncRemoteClient(port)
        await client.add_request(request("a", [1]))
        with pytest.raises(EngineDeadError, match="the card has fallen out") as died:
            await soon(client.get_outputs())
        assert "execute_model" in died.value.details
        with pytest.raises(EngineDeadError, match="fallen out"):
            client.check_health()

    if life == "process":
        with process(folder, "compose_failing") as port:
            asyncio.run(serve(port))
            port.close()
            assert left_behind(port.carrier.pid) == []
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "execute_model", fail)
            port = open_port("thread", folder)
            asyncio.run(serve(port))
            port.close()


def fail(self: Worker, output: object) -> None:
    raise RuntimeError("the card has fallen out")


@pytest.mark.parametrize(
    ("composer", "error", "words"),
    [
        ("compose_refused", BackendError, "no backend fits, for a reason"),
        ("compose_crashing", EngineDeadError, "(?s)did not start: ZeroDivisionError.*compose_crashing"),
        ("compose_vanishing", EngineDeadError, "(?s)did not start.*exit code 3.*my last words"),
    ],
)
def test_what_keeps_an_engine_from_starting_is_told_at_once(
    folder: ModelFolder, composer: str, error: type[Exception], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=words), process(folder, composer):
        pass
    assert capfd.readouterr().out == ""
    assert list(socket_folder().glob(f"{os.getpid()}-*")) == []


def test_another_version_on_either_side_is_told(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("headstock.core.engine.lives.handshake.__version__", "99.0")
        with pytest.raises(HeadstockError, match=r"and this process 99\.0 .*Install one version"), process(folder):
            pass
    setup = Setup(version="99.0", composer="", payload=b"")
    with pytest.raises(HeadstockError, match=r"is asked for by 99\.0"):
        read_setup(encode_word(setup))
    with pytest.raises(HeadstockError, match="a set-up has to come first"):
        read_setup(encode_word(Beat(longest_step=1.0)))
    ready = Ready(info=tiny_core(folder).info, digest=digest(setup))
    check_ready(setup, ready)
    with pytest.raises(HeadstockError, match="another configuration"):
        check_ready(Setup(version="99.0", composer="", payload=b"other"), ready)


def test_what_the_engine_prints_goes_to_stderr(folder: ModelFolder, capfd: pytest.CaptureFixture[str]) -> None:
    with process(folder, "compose_talking") as port:
        assert run(RemoteClient(port), [request("a", [1])])["a"][1] == "length"
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "said in Python" in captured.err
    assert "said in C" in captured.err


def test_a_slow_step_alarms_nobody_and_a_stuck_one_is_ended(folder: ModelFolder) -> None:
    """The limits of a real engine, ten times as strict: a step of 2 s, with a limit of 6 s, heartbeats each 0.05 s."""
    vigil = Vigil(beat=0.05, silence=0.3, step=6.0, step_factor=2.5)
    with process(folder, "compose_slow", vigil=vigil) as port:
        client = RemoteClient(port)
        assert run(client, [request("slow", [200], max_tokens=1)])["slow"][1] == "length"
        begun = time.monotonic()
        client.add_request(request("stuck", [201], max_tokens=1))
        with pytest.raises(EngineDeadError, match=r"(?s)stuck in a step.*a step has taken.*execute_model"):
            client.get_outputs()
        assert time.monotonic() - begun > vigil.step_limit(2.0) * 0.9


@pytest.mark.heavy
def test_a_step_of_twenty_seconds_alarms_nobody(folder: ModelFolder) -> None:
    with process(folder, "compose_very_slow") as port:
        assert run(RemoteClient(port), [request("slow", [200], max_tokens=1)])["slow"][1] == "length"


def test_an_engine_ends_with_whoever_started_it(folder: ModelFolder, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from support.lives import launch\n"
        "from headstock.core.engine import LoopPort, ProcessCarrier; from headstock.core.model import ModelFolder\n"
        "folder = ModelFolder(name='tiny', path=Path(sys.argv[1]), origin='')\n"
        "port = LoopPort(ProcessCarrier(launch(folder))); print(port.carrier.pid, flush=True); sys.stdin.read()"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_RUNTIME_DIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait(PATIENCE)
        psutil.wait_procs([child], timeout=PATIENCE)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_sockets_lie_on_short_paths_in_a_private_folder(
    folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    found = socket_folder()
    assert found.parent == Path("/tmp")
    assert found.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / f"headstock-{os.getuid()}").mkdir(mode=0o755)
    assert socket_folder() == found  # the other one is open to everybody
    stale = found / "999999999-dead.c"
    stale.touch()
    socket_folder()
    assert not stale.exists()


def test_closing_is_quick_and_may_be_done_again(folder: ModelFolder) -> None:
    with process(folder) as port:
        client = RemoteClient(port)
        client.add_request(request("a", range(100), max_tokens=100))
        client.close()
        client.close()
        assert left_behind(port.carrier.pid) == []
        with pytest.raises(EngineDeadError, match="closed"):
            run(client)  # what came before is told
        with pytest.raises(EngineDeadError, match="closed"):
            client.add_request(request("b", [1]))
