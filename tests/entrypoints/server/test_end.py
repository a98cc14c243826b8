"""How a server ends: told to, with its engine, or before it has begun."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from headstock.core.engine import EngineCore
from headstock.core.errors import HeadstockError
from headstock.core.live import read_recording
from headstock.core.model import ModelFolder
from headstock.entrypoints.cli import extras
from headstock.entrypoints.server.listen import Address
from support.cli import run_cli
from support.http_server import PATIENCE, lines, served

LONG = {"prompt": [5], "max_tokens": 200, "ignore_eos": True, "stream": True}


@contextmanager
def started(folder: ModelFolder, *options: str, **environ: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """`headstock serve` in a process of its own, and its URL."""
    command = [
        sys.executable,
        "-m",
        "headstock",
        "serve",
        str(folder.path),
        *([] if "--uds" in options else ["--port", "0"]),
        "--served-model-name",
        "tiny",
    ]
    with subprocess.Popen(
        [*command, "--attention-backend", "sdpa", "--kv-cache-memory", "4M", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"(?:https?://|unix:)[^\s\"]+", line):
                    yield process, found[0]
                    break
            else:
                raise AssertionError(f"it ended with {process.wait()}")
        finally:
            if process.poll() is None:
                process.kill()


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def request(url: str, method: str, path: str, body: Any = None) -> socket.socket:
    connection = connect(url)
    send(connection, method, path, body)
    return connection


def send(connection: socket.socket, method: str, path: str, body: Any = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)


def status(connection: socket.socket) -> int:
    with connection:
        return int(next(lines(connection)).split()[1])


def test_told_to_end_it_says_so_first_finishes_what_runs_and_leaves(folder: ModelFolder) -> None:
    with started(folder, "--log-format", "json") as (process, url):
        assert status(request(url, "GET", "/health")) == 200
        running = request(url, "POST", "/v1/completions", {**LONG, "n": 4})
        heard = lines(running)
        assert next(heard) == "HTTP/1.1 200 OK"
        while not next(heard).startswith("data: "):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "going down" not in process.stderr.readline():
            pass
        assert status(request(url, "GET", "/health")) == 503
        refused = request(url, "POST", "/v1/completions", {"prompt": [5]})
        answer = list(lines(refused))
        assert answer[0].split()[1] == "503"
        assert any(line.lower().startswith("retry-after: ") for line in answer)
        rest = list(heard)
        assert "data: [DONE]" in rest
        assert sum('"finish_reason":"length"' in line for line in rest) == 4
        assert process.wait(PATIENCE) == 0
        for line in process.stderr:
            assert json.loads(line)["level"]


def test_what_does_not_finish_in_time_is_told_so(folder: ModelFolder) -> None:
    with started(folder, "--shutdown-timeout", "0") as (process, url):
        running = request(url, "POST", "/v1/completions", {**LONG, "n": 64})
        heard = lines(running)
        while not next(heard).startswith("data: "):
            pass
        process.send_signal(signal.SIGINT)
        rest = list(heard)
        assert process.wait(PATIENCE) == 0
        assert rest[-2:] == ["data: [DONE]", ""]
        assert '"code": "aborted"' in rest[-4]


def test_keys_come_from_the_environment(folder: ModelFolder) -> None:
    with started(folder, HEADSTOCK_API_KEY="one,two") as (process, url):
        assert status(request(url, "GET", "/health")) == 200
        assert status(request(url, "GET", "/v1/models")) == 401
        with connect(url) as connection:
            connection.sendall(b"GET /v1/models HTTP/1.0\r\nAuthorization: Bearer two\r\n\r\n")
            assert next(lines(connection)).split()[1] == "200"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_unix_socket_is_for_its_user_and_removed(folder: ModelFolder, tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # as a server that was killed leaves it
    with started(folder, "--uds", str(path)) as (process, url):
        assert url == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            send(connection, "GET", "/health")
            assert next(lines(connection)).split()[1] == "200"
        refused = run_cli("serve", str(folder.path), "--uds", str(path))
        assert (refused.code, "cannot listen" in refused.err) == (2, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert not path.exists()


def test_a_decoder_serves_vectors_where_it_is_told_to(folder: ModelFolder) -> None:
    with started(folder, "--runner", "pooling") as (process, url):
        with connect(url) as connection:
            send(connection, "POST", "/v1/embeddings", {"input": "the fox"})
            assert next(lines(connection)).split()[1] == "200"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_https_works_and_plain_http_does_not(folder: ModelFolder, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with started(folder, "--ssl-certfile", cert, "--ssl-keyfile", key) as (process, url):
        port = int(url.rpartition(":")[2])
        context = ssl.create_default_context(cafile=cert)
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            send(connection, "GET", "/health")
            assert next(lines(connection)).split()[1] == "200"
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
            send(plain, "GET", "/health")
            assert not any(line.startswith("HTTP/1.1 200") for line in lines(plain))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost that signs itself, and its key."""
    where = tmp_path_factory.mktemp("tls")
    cert, key = str(where / "cert.pem"), str(where / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made = subprocess.run(
        [*command, "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl is not here to make a certificate")
    return cert, key


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_engine_that_dies_takes_everybody_along_with_a_word(folder: ModelFolder, stream: bool) -> None:
    def prepare(core: EngineCore) -> None:
        execute, steps = core.worker.execute_model, []

        def execute_model(scheduled: Any) -> Any:
            steps.append(1)
            if len(steps) > 5:
                raise RuntimeError("the card is gone")
            return execute(scheduled)

        core.worker.execute_model = execute_model  # pyright: ignore[reportAttributeAccessIssue]

    with served(folder, prepare=prepare) as server:
        reply = server.post("/v1/completions", **{**LONG, "stream": stream})
        error = reply.events[-1]["error"] if stream else reply.error
        assert error["code"] == "engine_dead"
        assert reply.status == (200 if stream else 503)
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
        assert server.http.exit_code == 1


def test_health_is_503_from_the_engines_death_on(folder: ModelFolder) -> None:
    with served(folder) as server:
        assert server.send("GET", "/health").status == 200
        blocker = server.state.served("a client that stays")
        server.loop.call_soon_threadsafe(blocker.__enter__)  # so that the server waits a moment for it
        server.state.engine.client.close()
        assert server.send("GET", "/health").status == 503
        assert server.post("/v1/completions", prompt=[5]).status == 503
        server.loop.call_soon_threadsafe(blocker.__exit__, None, None, None)
        server.thread.join(PATIENCE)
        assert server.http.exit_code == 1


@pytest.mark.parametrize(
    "fate",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.heavy)],
)
def test_an_engine_process_that_is_gone_is_told_within_seconds(folder: ModelFolder, fate: signal.Signals) -> None:
    """With three streams open: each ends with an error, the server with 1, and no process stays."""
    with started(folder, "--engine", "process", "--log-format", "json") as (process, url):
        engine = child_of(process)
        # Longer than the test: a stopped engine must not have been done already.
        streams = [request(url, "POST", "/v1/completions", {**LONG, "n": 64}) for _ in range(3)]
        heard = [lines(stream) for stream in streams]
        for each in heard:
            while not next(each).startswith("data: "):
                pass
        engine.send_signal(fate)
        told = time.monotonic()
        for each in heard:
            rest = list(each)
            assert "engine_dead" in rest[-4], rest[-6:]
            assert rest[-2] == "data: [DONE]"
        assert time.monotonic() - told < 30, "a busy machine is given time; a quiet one takes five seconds"
        assert process.wait(PATIENCE) == 1
        assert not engine.is_running()


def test_a_server_that_is_killed_leaves_a_recording_of_all_it_computed(folder: ModelFolder, tmp_path: Path) -> None:
    """In the middle of two streams, of which eight tokens and more were heard."""
    tape = tmp_path / "attention.tape"
    with started(folder, "--record-attention", str(tape), "--record-tensors") as (process, url):
        heard = [lines(request(url, "POST", "/v1/completions", {**LONG, "n": 8})) for _ in range(2)]
        for each in heard:
            told = 0
            while told < 64:
                told += next(each).startswith("data: ")
        process.kill()
        process.wait(PATIENCE)
    recording = read_recording(tape)
    assert [step.number for step in recording.steps] == list(range(1, len(recording.steps) + 1))
    assert len(recording.steps) >= 8
    assert all(len(step.tensors) == len(step.groups) for step in recording.steps[:-1])
    done = run_cli("replay", str(tape), "--attention-backend", "reference", "--limit", "4")
    assert done.code == 0, done.out + done.err


def child_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The engine's process."""
    children = psutil.Process(process.pid).children(recursive=True)
    return max(children, key=lambda child: child.memory_info().rss)


@pytest.mark.heavy
def test_two_engine_processes_share_the_requests(folder: ModelFolder) -> None:
    with started(folder, "--engine", "process", "--data-parallel-size", "2") as (process, url):
        streams = [request(url, "POST", "/v1/completions", {**LONG, "prompt": [n]}) for n in range(1, 7)]
        for stream in streams:
            assert "data: [DONE]" in list(lines(stream))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


WRONG = [
    (["--data-parallel-size", "2"], "data_parallel_size"),
    (["--engine", "elsewhere"], "engine"),
    (["--port", "70000"], "port"),
    (["--port", "x"], "--port"),
    (["--log-format", "xml"], "log_format"),
    (["--scheduling-policy", "lottery"], "scheduling_policy"),
    (["--max-body-size", "none"], "max_body_size"),
    (["--max-queued-requests", "0"], "max_queued_requests"),
    (["--api-key", "a b"], "api_key"),
    (["--served-model-name", ""], "served_model_name"),
    (["--ssl-keyfile", "x"], "ssl_certfile"),
    (["--ssl-certfile", "/nowhere/cert.pem"], "ssl_certfile"),
    (["--request-timeout", "-1"], "request_timeout"),
    (["--metrics-prefix", "a b"], "metrics_prefix"),
    (["--max-num-seqs", "0"], "max_num_seqs"),
    (["--attention-backend", "flash_atn"], "flash_atn"),
    (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    (["--host", ""], "host: is empty"),
    (["--host", "a..b"], "cannot listen on a..b:8000"),
    (["--uds", ""], "uds: is empty"),
    (["--uds", "/tmp/x", "--port", "8000"], "port: has no meaning beside uds"),
    (["--uds", "/tmp/x", "--host", "127.0.0.1"], "host: has no meaning beside uds"),
    *[
        (["--allowed-origin", origin], f"allowed_origin: {origin!r} is nothing that a browser sends")
        for origin in (
            "nonsense",
            "",
            "null",
            "example.com",
            "https://",
            "https://example.com/",
            "https://example.com/app",
            "https://*.example.com",
            "https://me@example.com",
            "HTTPS://Example.com",
            "https://example.com:443",
            "http://example.com:80",
            " https://example.com",
        )
    ],
    (["--max-model-len", "100000"], "max_model_len"),
    (["--runner", "draft"], "runner: must be one of auto, generate, pooling, not 'draft'"),
    (["--runner", "pooling", "--engine", "process"], "engine: models that embed run in this process"),
    (["--runner", "pooling", "--scheduling-policy", "priority"], "scheduling_policy: models that embed"),
    (["--runner", "pooling", "--max-queued-tokens", "9"], "max_queued_tokens: models that embed"),
    (["--runner", "pooling", "--record-attention", "/tmp/x"], "record_attention: models that embed"),
]


@pytest.mark.parametrize(
    ("options", "named"), WRONG, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_wrong_options_are_named_and_end_with_code_2(folder: ModelFolder, options: list[str], named: str) -> None:
    result = run_cli("serve", str(folder.path), *options)
    assert result.code == 2
    assert named in result.err
    assert "Traceback" not in result.err


def test_a_model_that_is_not_there_is_told_before_anything_else(tmp_path: Path) -> None:
    result = run_cli("serve", str(tmp_path / "nothing"))
    assert (result.code, "Traceback" in result.err) == (2, False)


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(port=taken.getsockname()[1])
        with pytest.raises(HeadstockError, match=r"cannot listen on 127\.0\.0\.1"):
            address.open()


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "uvicorn" else find_spec(name))
    result = run_cli("serve", "smollm2")
    assert result.code == 2
    assert "headstock[server]" in result.err
