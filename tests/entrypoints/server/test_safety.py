"""Who may come in, how much they may bring, and what is told of them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from headstock.core.errors import InvalidInput
from headstock.core.model import ModelFolder
from headstock.entrypoints.server.gate import Keys
from headstock.entrypoints.server.logs import JsonFormatter, TextFormatter
from headstock.entrypoints.server.settings import ServerSettings
from support.http_server import Served, lines, served

KEYS = ("first-key", "second-key")
PATHS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


@pytest.fixture(scope="module")
def locked(folder: ModelFolder):
    with served(folder, api_keys=KEYS, allowed_origins=("https://page.example",)) as running:
        yield running


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer first-ke", "Basic first-key", "first-key", "Bearer \xff"]
)
def test_nothing_but_health_is_open_without_a_key(locked: Served, method: str, path: str, given: str) -> None:
    reply = locked.send(method, path, {} if method == "POST" else None, {"Authorization": given})
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", KEYS)
def test_any_of_the_keys_opens(locked: Served, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    assert locked.send("GET", "/v1/models", None, headers).status == 200
    assert locked.send("POST", "/v1/completions", {"prompt": [5], "max_tokens": 1}, headers).status == 200


def test_health_is_open(locked: Served) -> None:
    for method in ("GET", "HEAD"):
        assert locked.send(method, "/health", None, {"Authorization": ""}).status == 200


def test_all_keys_are_compared_whichever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    import hmac

    original = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or original(a, b))
    keys = Keys(["a", "b", "c"])
    assert [keys.find(given) for given in ("a", "c", "d", "")] == [0, 2, None, None]
    assert len(compared) == 4 * 3
    assert {len(digest) for digest in compared} == {32}


def test_pages_of_one_origin_may_call_and_no_others(locked: Served, server: Served) -> None:
    ask = {"Access-Control-Request-Method": "POST"}
    allowed = locked.send("OPTIONS", "/v1/completions", None, {"Origin": "https://page.example", **ask})
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    for running, origin in ((locked, "https://other.example"), (server, "https://page.example")):
        reply = running.send("OPTIONS", "/v1/completions", None, {"Origin": origin, **ask})
        assert "access-control-allow-origin" not in reply.headers


def test_a_body_beyond_the_limit_is_refused_announced_or_not(folder: ModelFolder) -> None:
    with served(folder, max_body_bytes=1000) as server:
        body = json.dumps({"prompt": "a" * 2000}).encode()
        reply = server.send("POST", "/v1/completions", body)
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")
        connection = server.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%s\r\n" % (len(body), body))  # and no end
        assert next(lines(connection)).startswith("HTTP/1.1 413 ")
        connection.close()
        assert server.post("/v1/completions", prompt="a", max_tokens=1).status == 200


def test_a_body_that_is_announced_is_not_waited_for(folder: ModelFolder) -> None:
    with served(folder, max_body_bytes=1000) as server:
        connection = server.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 99999999999999999999999999\r\n\r\n")
        assert next(lines(connection)).startswith("HTTP/1.1 4")
        connection.close()


def test_a_body_that_does_not_come_is_not_waited_for_longer_than_an_answer(folder: ModelFolder) -> None:
    with served(folder, request_timeout=0.05) as server:
        connection = server.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b'Content-Length: 100\r\n\r\n{"prompt": ')
        assert next(lines(connection)).startswith("HTTP/1.1 408 ")
        connection.close()


def test_a_full_queue_refuses_and_says_when_to_come_again(folder: ModelFolder) -> None:
    with served(folder, max_queued_requests=4, retry_after=3.0) as server:
        engine = server.state.engine
        server.call(engine.client.pause("keep"))
        streams = [queued(server, n=2) for _ in range(2)]
        reply = server.post("/v1/completions", prompt=[5], max_tokens=1)
        assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "queue_full", "3")
        server.call(engine.client.resume())
        for stream in streams:
            assert "data: [DONE]" in list(lines(stream))
            stream.close()
        assert server.post("/v1/completions", prompt=[5], max_tokens=1).status == 200


def test_a_queue_is_full_of_tokens_too(folder: ModelFolder) -> None:
    with served(folder, max_queued_tokens=30) as server:
        server.call(server.state.engine.client.pause("keep"))
        streams = [queued(server, prompt=[5] * 20) for _ in range(2)]
        assert server.post("/v1/completions", prompt=[5], max_tokens=1).error["code"] == "queue_full"
        server.call(server.state.engine.client.resume())
        for stream in streams:
            stream.close()


def test_one_key_cannot_take_every_place(folder: ModelFolder) -> None:
    with served(folder, api_keys=KEYS, max_requests_per_key=2) as server:
        server.call(server.state.engine.client.pause("keep"))
        streams = [queued(server) for _ in range(2)]
        reply = server.post("/v1/completions", prompt=[5], max_tokens=1)
        assert (reply.status, reply.error["code"]) == (429, "too_many_requests")
        assert int(reply.headers["retry-after"]) >= 1
        server.call(server.state.engine.client.resume())
        other = {"Authorization": f"Bearer {KEYS[1]}"}
        assert server.send("POST", "/v1/completions", {"prompt": [5], "max_tokens": 1}, other).status == 200
        for stream in streams:
            stream.close()


def queued(server: Served, **more: Any) -> Any:
    """A stream that has its headers, and waits in a paused engine."""
    connection = server.connect()
    body = json.dumps({"prompt": [5], "max_tokens": 4, "ignore_eos": True, "stream": True, **more}).encode()
    key = f"Authorization: Bearer {server.key}\r\n" if server.key else ""
    head = (
        f"POST /v1/completions HTTP/1.0\r\n{key}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    before = len(server.state.engine.request_ids)
    connection.sendall(head.encode() + body)

    async def wait() -> None:
        while len(server.state.engine.request_ids) == before:
            await asyncio.sleep(0.002)

    server.call(asyncio.wait_for(wait(), 60))
    return connection


def test_a_request_that_takes_too_long_ends_with_504(folder: ModelFolder) -> None:
    with served(folder, request_timeout=0.05) as server:
        server.call(server.state.engine.client.pause("keep"))
        reply = server.post("/v1/completions", prompt=[5], max_tokens=4)
        assert (reply.status, reply.error["code"]) == (504, "timeout")
        (event,) = server.post("/v1/completions", prompt=[5], max_tokens=4, stream=True).events
        assert event["error"]["code"] == "timeout"
        server.call(server.state.engine.client.resume())
        server.at_rest()


@pytest.mark.parametrize("given", ["mine-7.a:b_c", "x" * 128])
def test_a_harmless_request_id_comes_back(server: Served, given: str) -> None:
    assert server.send("GET", "/version", None, {"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["a b", "x" * 129, "a\tb", "\xff", '"}', ""])
def test_any_other_request_id_is_replaced(server: Served, given: str) -> None:
    found = server.send("GET", "/version", None, {"X-Request-Id": given}).headers["x-request-id"]
    assert found != given
    assert found.isalnum()


@pytest.mark.parametrize("kind", [JsonFormatter, TextFormatter])
def test_the_log_tells_no_secrets_and_cannot_be_broken_out_of(
    folder: ModelFolder, caplog: pytest.LogCaptureFixture, kind: type[logging.Formatter]
) -> None:
    with caplog.at_level(logging.DEBUG, "headstock"), served(folder, api_keys=KEYS) as server:
        server.post("/v1/completions", prompt="a secret prompt", max_tokens=3, ignore_eos=True)
        server.post("/v1/completions", prompt="a secret prompt", stop=["a secret stop"], temperature=-1)
        server.send("GET", "/%0d%0aWARNING%20forged?secret=1", None, {"Authorization": "Bearer wrong-secret"})
    written = [kind().format(record) for record in caplog.records]
    assert any("completion_tokens" in line for line in written)
    for line in written:
        assert "secret" not in line
        assert "first-key" not in line
        assert "\n" not in line
        if kind is JsonFormatter:
            assert json.loads(line)["level"]


def test_the_text_log_is_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\nb\x1b[31m\u202e", None, None)
    assert "a\\nb\\x1b[31m\\u202e" in TextFormatter().format(record)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_names", ()),
        ("api_keys", ("a b",)),
        ("api_keys", ("",)),
        ("max_body_bytes", 0),
        ("max_queued_requests", 0),
        ("max_queued_tokens", -1),
        ("max_requests_per_key", 0),
        ("max_logprobs", -1),
        ("request_timeout", 0),
        ("request_timeout", float("nan")),
        ("shutdown_timeout", -1),
        ("shutdown_timeout", float("inf")),
        ("metrics_prefix", "a:b"),
        ("metrics_prefix", ""),
    ],
)
def test_settings_that_make_no_sense_are_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        ServerSettings(**{"model_names": ("tiny",), field: value})
    assert refused.value.field in (field, "served_model_name", "api_key")


def test_metrics_count_what_happened(folder: ModelFolder) -> None:
    with served(folder) as server:
        server.post("/v1/completions", prompt=[5, 9], max_tokens=7, ignore_eos=True, n=2)
        server.post("/v1/completions", prompt=[5, 9], temperature=-1)
        assert server.post("/v1/completions", prompt=[5] * 5000, n=2).status == 400
        server.send("GET", "/nothing")
        connection = queued(server, max_tokens=200)
        connection.close()
        server.at_rest()
        text = server.send("GET", "/metrics").body.decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="tiny"}'
    assert float(found[f"vllm:generation_tokens_total{labels}"]) >= 14
    assert float(found[f"vllm:prompt_tokens_total{labels}"]) >= 2
    assert found[f"vllm:kv_cache_usage_perc{labels}"] == "0.0"
    assert found[f"vllm:num_requests_running{labels}"] == "0.0"
    assert float(found[f"vllm:e2e_request_latency_seconds_count{labels}"]) >= 2
    ends = {
        r: found[f'vllm:request_success_total{{engine="0",finished_reason="{r}",model_name="tiny"}}']
        for r in ("length", "abort")
    }
    assert ends == {"length": "2.0", "abort": "1.0"}
    # Two were wrong, and one client left.
    assert found['http_requests_total{handler="/v1/completions",method="POST",status="4xx"}'] == "3.0"
    assert found['http_requests_total{handler="other",method="other",status="4xx"}'] == "1.0"


def test_metrics_can_have_another_prefix(folder: ModelFolder) -> None:
    with served(folder, metrics_prefix="headstock") as server:
        assert b"\nheadstock:num_requests_running" in server.send("GET", "/metrics").body
