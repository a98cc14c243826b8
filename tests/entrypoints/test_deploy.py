"""`LLM` with its engine elsewhere: composed there, by the real plugins, from what is sent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headstock import LLM, SamplingParams
from headstock.core.engine import LoopPort, ProcessCarrier, RemoteClient, RouterPort
from headstock.core.errors import BackendError, EngineDeadError, HeadstockError, InvalidInput
from headstock.entrypoints.deploy import Deployment
from support.cli import run_cli
from support.tiny import tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SETTINGS: dict[str, Any] = {"kv_cache_memory_bytes": 2**22, "attention_policy": {"window": "reference", "full": "sdpa"}}
PROMPTS = [{"prompt_token_ids": [i, i + 1, i + 2]} for i in range(1, 7)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny")).path


@pytest.fixture(scope="module")
def two(model: Path) -> Generator[LLM]:
    llm = LLM(model, engine="process", data_parallel_size=2, **SETTINGS)
    yield llm
    llm.close()


def token_ids(llm: LLM) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def test_two_processes_answer_as_one_engine_here_does(model: Path, two: LLM) -> None:
    here = LLM(model, **SETTINGS)
    assert token_ids(two) == token_ids(here)
    assert here.attention.summary() == two.attention.summary() == two.engine.client.info.attention
    ports = _ports(two)
    assert all(port.call("stats").result().num_steps > 0 for port in ports)
    assert len({port.carrier.pid for port in ports} | {os.getpid()}) == 3
    (streamed,) = [o for o in two.stream(PROMPTS[0], GREEDY) if o.finished]
    assert streamed.outputs[0].token_ids == token_ids(here)[0]
    assert two.stats().num_running == 0
    assert two.reset_prefix_cache()


def test_wrong_input_is_refused_as_ever_and_the_next_is_served(two: LLM) -> None:
    with pytest.raises(InvalidInput, match="max_model_len"):
        two.generate([{"prompt_token_ids": [3] * 300}], GREEDY)
    with pytest.raises(InvalidInput, match="session"):
        two.generate([{"prompt": "a", "session": 3}], GREEDY)
    with pytest.raises(HeadstockError, match="does not live in this process"):
        two.set_attention(attention_backend="reference")
    sticky = [{**prompt, "session": "mine"} for prompt in PROMPTS]
    before = [port.call("stats").result().num_steps for port in _ports(two)]
    two.generate(sticky, GREEDY, use_tqdm=False)
    after = [port.call("stats").result().num_steps for port in _ports(two)]
    assert sum(b > a for a, b in zip(before, after, strict=True)) == 1


def _ports(llm: LLM) -> list[LoopPort[ProcessCarrier]]:
    client = llm.engine.client
    assert isinstance(client, RemoteClient)
    router = client._port
    assert isinstance(router, RouterPort)
    return [port for port in router.ports if isinstance(port, LoopPort)]


def test_the_death_of_one_ends_generate_and_all_processes(model: Path, two: LLM) -> None:
    """The last to use the two."""
    pids = [port.carrier.pid for port in _ports(two)]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"engine 1 of 2: .*SIGKILL"):
        two.generate(PROMPTS, SamplingParams(max_tokens=200), use_tqdm=False)
    two.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_what_the_engine_refuses_is_raised_as_it_is(model: Path) -> None:
    with pytest.raises(BackendError, match="no_such_backend"):
        LLM(model, engine="process", attention_backend="no_such_backend")
    with pytest.raises(HeadstockError, match=r"memory|max_model_len|blocks"):
        LLM(model, engine="process", attention_backend="sdpa", kv_cache_memory_bytes=1000)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"engine": "thread"}, "engine"),
        ({"engine": None}, "engine"),
        ({"data_parallel_size": 2}, "data_parallel_size"),
        ({"engine": "process", "data_parallel_size": 0}, "data_parallel_size"),
        ({"engine": "process", "data_parallel_size": True}, "data_parallel_size"),
        ({"engine": "process", "data_parallel_size": 1.5}, "data_parallel_size"),
        ({"restart_engine": True}, "restart_engine"),
        ({"engine": "process", "restart_engine": "yes"}, "restart_engine"),
    ],
)
def test_wrong_deployments_are_told_by_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Deployment(**options)
    assert refused.value.field == field


def test_options_that_cannot_be_sent_are_told(model: Path) -> None:
    with pytest.raises(HeadstockError, match="attention_backend_config"):
        LLM(model, engine="process", attention_backend="sdpa", attention_backend_config={"sdpa": {"x": object()}})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "thread"], "engine: must be one of inproc, process, ray"),
        (["--data-parallel-size", "2"], "data_parallel_size: 2 engines need engine=process"),
        (["--engine", "process", "--data-parallel-size", "-1"], "data_parallel_size: must be an integer from 1"),
        (["--restart-engine"], "restart_engine: "),
        (["--engine", "process", "--profile", "trace.json"], "profile: "),
    ],
)
def test_wrong_options_are_told_by_name(model: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    with contextlib.chdir(tmp_path):
        done = run_cli("generate", str(model), "abc", *arguments)
    assert done.code == 2
    assert words in done.err


def test_the_command_line_ends_with_1_where_the_engine_dies(model: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'headstock.core.engine.lives.child' in ' '.join(sys.orig_argv):\n"
        "    from headstock.core.worker.worker import Worker\n"
        "    Worker.execute_model = lambda self, output: os._exit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "headstock", "generate", str(model), "abc", "--engine", "process"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "exit code 9" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() == ""
