"""Engines in Ray actors, on a real cluster of this machine. What all lives share is in test_lives.py."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headstock.core.engine import AsyncRemoteClient, LoopPort, RayCarrier
from headstock.core.engine.lives.shipping import shipped_folder
from headstock.core.errors import BackendError, EngineDeadError, HeadstockError
from headstock.core.model import ModelFolder
from support.lives import launch, request, run_async, soon
from support.tiny import tiny_folder

heavy = pytest.mark.heavy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def test_without_ray_it_is_said_what_to_install(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HeadstockError, match=r"pip install 'headstock\[ray\]'"):
        LoopPort(RayCarrier(launch(folder)))
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@heavy
@pytest.mark.parametrize("way", ["killed", "raised"])
def test_everybody_who_waits_is_told(folder: ModelFolder, way: str) -> None:
    async def serve() -> None:
        composer = "support.lives:compose" + ("_failing" if way == "raised" else "")
        port = LoopPort(RayCarrier(launch(folder, composer=composer)))
        client = AsyncRemoteClient(port)
        if way == "killed":
            assert (await run_async(client, [request("a", [1])]))["a"][1] == "length"
            await client.pause("keep")
        await client.add_request(request("b", [1, 2, 3]))
        waiting = asyncio.create_task(client.get_outputs())
        if way == "killed":
            os.kill(port.carrier.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="has died"):
            await soon(waiting)
        with pytest.raises(EngineDeadError):
            client.check_health()
        await asyncio.to_thread(port.close)

    asyncio.run(serve())


@heavy
@pytest.mark.parametrize(
    ("composer", "error", "words"),
    [
        ("compose_refused", BackendError, "no backend fits, for a reason"),
        ("compose_crashing", EngineDeadError, "(?s)ZeroDivisionError.*compose_crashing"),
        ("compose_vanishing", EngineDeadError, "did not start"),
    ],
)
def test_what_keeps_an_engine_from_starting_is_told(
    folder: ModelFolder, composer: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        LoopPort(RayCarrier(launch(folder, composer=f"support.lives:{composer}")))


@heavy
def test_nodes_run_what_they_are_sent(folder: ModelFolder) -> None:
    """A cluster that is joined by its address, as others are, and an `LLM` over it, from a process of its own."""
    program = (
        "import sys; from headstock import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], engine='ray', attention_backend='sdpa', kv_cache_memory_bytes=2**22)\n"
        "print(llm.engine.client._port.carrier.path)\n"
        "(out,) = llm.generate('abc', SamplingParams(max_tokens=3, ignore_eos=True))\n"
        "print(out.outputs[0].token_ids); llm.close()"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": address}
    arguments = [sys.executable, "-c", program, str(folder.path)]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false"]
    where = [f"--port={address.partition(':')[2]}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    with subprocess.Popen([*command, *where], env=environ, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        try:
            assert any("Ray runtime started" in line for line in head.stdout)
            done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)
        finally:
            head.terminate()
    assert done.returncode == 0, done.stderr
    path, tokens = done.stdout.strip().splitlines()[-2:]
    assert "runtime_resources" in path
    assert tokens.count(",") == 2


@heavy
def test_what_is_sent_is_a_wheels_contents() -> None:
    sent = Path(shipped_folder())
    assert (sent / "headstock" / "core" / "engine" / "lives" / "ray_actor.py").is_file()
    (metadata,) = sent.glob("headstock-*.dist-info")
    assert "headstock.backends" in (metadata / "entry_points.txt").read_text()
