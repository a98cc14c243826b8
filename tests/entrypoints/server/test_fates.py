"""Clients that leave, requests that fail, and everything at once: nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headstock.core.engine import EngineCore, Prompt
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.entrypoints.server.logs import FIELDS
from support.clients import hang_up, post, send
from support.http_server import PATIENCE, Served, lines, served

LONG: dict[str, Any] = {"max_tokens": 220, "ignore_eos": True, "temperature": 1.0, "seed": 1}
PREFILL = {"prompt": [9] * 180, **LONG, "max_tokens": 60}


@pytest.fixture(scope="module")
def server(folder: ModelFolder) -> Iterator[Served]:
    """Small chunks, so that prefills last, and few places, so that requests queue."""
    with served(folder, engine={"max_num_batched_tokens": 16, "max_num_seqs": 4, "block_size": 4}) as running:
        yield running


def wait_until(server: Served, condition: Any) -> None:
    """Until `condition` of the engine's counts holds."""

    async def wait() -> None:
        while not condition(await server.state.engine.client.stats()):
            await asyncio.sleep(0.002)

    server.call(asyncio.wait_for(wait(), PATIENCE))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_is_in_the_log_and_no_error(
    server: Served, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with caplog.at_level(logging.INFO, "headstock"):
        connection = post(server, "/v1/completions", {"prompt": [5, 9], "stream": stream, **LONG})
        wait_until(server, lambda stats: stats.num_running == 1)
        hang_up(connection)
        server.at_rest()
    assert {record.levelname for record in caplog.records} == {"INFO"}
    (told,) = [record for record in caplog.records if record.getMessage() == "request"]
    assert getattr(told, FIELDS)["status"] == 499


def test_a_client_that_leaves_while_it_sends_is_no_error_either(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "headstock"):
        connection = server.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 1000\r\n\r\n{")
        hang_up(connection)

        async def told() -> None:
            while not caplog.records:
                await asyncio.sleep(0.002)

        server.call(asyncio.wait_for(told(), PATIENCE))
        server.at_rest()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage(), getattr(record, FIELDS)["status"]) == ("INFO", "request", 499)
    assert b'handler="/v1/completions",method="POST",status="5xx"' not in server.send("GET", "/metrics").body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_while_it_is_answered_ends_its_request(server: Served, stream: bool, n: int) -> None:
    for _ in range(6):
        connection = post(server, "/v1/completions", {"prompt": [5, 9], "stream": stream, "n": n, **LONG})
        wait_until(server, lambda stats: stats.num_running == n)
        hang_up(connection)
        server.at_rest()
    assert server.stats().num_steps > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_in_prefill_ends_its_request(server: Served, stream: bool) -> None:
    for seed in range(6):
        steps = server.stats().num_steps
        connection = post(server, "/v1/completions", {**PREFILL, "stream": stream, "cache_salt": f"{stream}{seed}"})
        wait_until(server, lambda stats, steps=steps: stats.num_steps > steps)
        hang_up(connection)
        server.at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_the_queue_is_forgotten(server: Served, stream: bool) -> None:
    busy = [post(server, "/v1/completions", {"prompt": [n], **LONG, "stream": True}) for n in range(4)]
    wait_until(server, lambda stats: stats.num_running == 4)
    queued = [post(server, "/v1/completions", {"prompt": [50 + n], **LONG, "stream": stream, "n": 3}) for n in range(6)]
    wait_until(server, lambda stats: stats.num_waiting == 18)
    for connection in queued:
        hang_up(connection)
    wait_until(server, lambda stats: stats.num_waiting == 0)
    assert server.stats().num_running == 4
    for connection in busy:
        hang_up(connection)


def test_a_stream_in_the_queue_has_its_headers_at_once(server: Served) -> None:
    server.call(server.state.engine.client.pause("keep"))
    connection = post(server, "/v1/completions", {"prompt": [5], **LONG, "stream": True})
    assert next(lines(connection)) == "HTTP/1.1 200 OK"
    server.call(server.state.engine.client.resume())
    hang_up(connection)


def test_a_reader_that_stops_reading_holds_back_nobody(server: Served) -> None:
    """Its connection fills up; the others are served, and the answer waits for it whole."""
    stuck = server.connect()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    send(stuck, "/v1/completions", {"prompt": [5], **LONG, "stream": True, "logprobs": 20, "n": 4})
    reply = server.post("/v1/completions", prompt=[5, 9], max_tokens=20, ignore_eos=True)
    assert reply.json["usage"]["completion_tokens"] == 20
    wait_until(server, lambda stats: stats.num_running == 0)
    tokens = sum(
        len(choice["logprobs"]["tokens"])
        for line in lines(stuck)
        if line.startswith("data: {")
        for choice in json.loads(line.removeprefix("data: "))["choices"]
    )
    assert tokens == 4 * LONG["max_tokens"]
    stuck.close()


def test_a_step_that_fails_ends_its_requests_with_an_error_and_the_next_is_served(folder: ModelFolder) -> None:
    """Twice: an answer that is whole has status 500, a stream gets an event."""
    failing: list[Exception] = []

    def prepare(core: EngineCore) -> None:
        execute = core.worker.execute_model

        def execute_model(scheduled: Any) -> Any:
            result = execute(scheduled)
            if failing:
                ids = list(scheduled.num_scheduled_tokens)
                return type(result)(failures=dict.fromkeys(ids, str(failing.pop())))
            return result

        core.worker.execute_model = execute_model  # pyright: ignore[reportAttributeAccessIssue]

    with served(folder, prepare=prepare) as server:
        failing.append(RuntimeError("no luck"))
        reply = server.post("/v1/completions", prompt=[5], max_tokens=4)
        assert (reply.status, reply.error["code"]) == (500, "request_failed")
        assert "no luck" in reply.error["message"]
        failing.append(RuntimeError("no luck"))
        *_, last = server.post("/v1/completions", prompt=[5], max_tokens=4, stream=True).events
        assert "no luck" in last["error"]["message"]
        assert server.post("/v1/completions", prompt=[5], max_tokens=4).status == 200
        server.at_rest()


FATES = ("finish", "stream", "stop", "leave at once", "leave later", "leave a stream", "abort", "bad", "deadline")


def test_two_hundred_requests_of_every_fate_leave_nothing(server: Served) -> None:
    """From eight clients at a time. Those that finish give what they give alone."""
    rng = random.Random(7)
    jobs = [(number, rng.choice(FATES)) for number in range(200)]
    whole = {"prompt": [5, 9, 13], "max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    expected = server.post("/v1/completions", **whole).json["choices"][0]["text"]
    problems: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not jobs:
                    return
                number, fate = jobs.pop()
            if (problem := meet(server, fate, number, whole, expected)) is not None:
                problems.append(f"{number} {fate}: {problem}")

    clients = [threading.Thread(target=work) for _ in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert problems == []
    server.at_rest()
    assert server.stats().kv_usage == 0
    assert server.post("/v1/completions", **whole).json["choices"][0]["text"] == expected


def meet(server: Served, fate: str, number: int, whole: dict[str, Any], expected: str) -> str | None:
    """Live through one fate; what went wrong."""
    prompt = [number % 200 + 1] * (1 + number % 60)
    long = {"prompt": prompt, **LONG, "max_tokens": 100, "n": 1 + number % 3, "stream": number % 2 == 0}
    if fate == "finish":
        text = server.post("/v1/completions", **whole).json["choices"][0]["text"]
        return None if text == expected else f"{text!r} is not {expected!r}"
    if fate == "stream":
        text = server.post("/v1/completions", **whole, stream=True).texts()[0]
        return None if text == expected else f"{text!r} is not {expected!r}"
    if fate == "stop":
        stop = expected[2:4]
        choice = server.post("/v1/completions", **whole, stop=stop).json["choices"][0]
        wanted = (expected.partition(stop)[0], "stop")
        return None if (choice["text"], choice["finish_reason"]) == wanted else str(choice)
    if fate == "bad":
        reply = server.post("/v1/completions", **{**long, "temperature": -1, "stream": False})
        return None if reply.status == 400 else str(reply.status)
    if fate in ("abort", "deadline"):
        return ended(server, fate, number, prompt)
    leave(server, fate, long)
    return None


def leave(server: Served, fate: str, body: dict[str, Any]) -> None:
    connection = post(server, "/v1/completions", body | {"stream": fate == "leave a stream"})
    if fate == "leave a stream":
        for line in lines(connection):
            if line.startswith("data: "):
                break
    elif fate == "leave later":
        connection.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            connection.recv(1)
    hang_up(connection)


def ended(server: Served, fate: str, number: int, prompt: list[int]) -> str | None:
    """A request of the engine's own front end: aborted by its id, or with too little time."""
    params = SamplingParams(max_tokens=200, ignore_eos=True, n=1 + number % 3)

    async def ask() -> str | None:
        engine, name = server.state.engine, f"{fate}-{number}"
        deadline = 0.001 if fate == "deadline" else None
        stream = await engine.add_request(Prompt(token_ids=tuple(prompt)), params, request_id=name, deadline=deadline)
        if fate == "abort":
            await engine.abort([name])
        last = [output async for output in stream][-1]
        stream.close()
        return last.outputs[-1].finish_reason

    reason = server.call(ask())
    return None if reason == "abort" else str(reason)
