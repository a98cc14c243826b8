"""Bodies that are large: what is in them is counted before it is made, and other streams go on meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.entrypoints.server import bodies
from headstock.entrypoints.server.bodies import MAX_VALUES, exceeds_values
from support.http_server import Served

SCALARS = st.none() | st.booleans() | st.integers() | st.text('a"\\,[{]}:\n€\ud800', max_size=8)
DOCUMENTS = st.recursive(SCALARS, lambda x: st.lists(x, max_size=5) | st.dictionaries(st.text('"\\,{'), x, max_size=5))
MANY = MAX_VALUES + 10


@given(DOCUMENTS, st.booleans())
def test_separators_are_counted_outside_of_texts(document: Any, ascii_only: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only)
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
    count = sum(bare.count(sign) for sign in ",[{")
    data = text.encode("utf-8", "surrogatepass")
    assert not exceeds_values(data, count)
    assert exceeds_values(data, count - 1)


@pytest.mark.parametrize("broken", [b'"', b'["a,,,,', b'["\\', b'"\\"', b"\\", b'{"a":"\\\\', b""])
def test_what_is_no_json_is_counted_to_its_end(broken: bytes) -> None:
    assert not exceeds_values(broken, 5)
    exceeds_values(broken, 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt":[%s1]}' % (b"1," * MANY)),
        ("/v1/completions", b'{"prompt":[%s[1]]}' % (b"[1]," * MANY)),
        ("/v1/completions", b'{"prompt":"a","thing":[%s{}]}' % (b"{}," * MANY)),
        ("/v1/completions", b'{"prompt":"a","stop":[%s"a"]}' % (b'"a",' * MANY)),
        ("/v1/completions", b'{"prompt":%s' % (b"[" * MANY)),
        ("/v1/chat/completions", b'{"messages":[%s{}]}' % (b'{"role":"user"},' * MANY)),
        ("/detokenize", b'{"tokens":[%s1]}' % (b"1," * MANY)),
    ],
    ids=["ids", "prompts", "unknown", "stops", "depth", "messages", "tokens"],
)
def test_more_values_than_anybody_means_are_refused_before_they_are_made(
    server: Served, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_loads", lambda data: pytest.fail("it was parsed"))
    reply = server.send("POST", path, body)
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert f"more than {MAX_VALUES} values" in reply.error["message"]


def test_commas_in_a_text_are_no_values(server: Served) -> None:
    reply = server.post("/v1/completions", prompt="a", max_tokens=1, user='1,"[{' * MANY)
    assert reply.status == 200


@pytest.mark.parametrize("digits", [399, 400, 4300, 4301, 100_000])
@pytest.mark.parametrize("field", ["seed", "temperature", "prompt", "top_k"])
def test_an_integer_of_any_length_is_refused_by_its_field(server: Served, field: str, digits: int) -> None:
    rest = b'"prompt":"a",' if field != "prompt" else b""
    reply = server.send("POST", "/v1/completions", b'{%s"%s":%s}' % (rest, field.encode(), b"9" * digits))
    assert (reply.status, reply.error["param"]) == (400, field)
    assert len(reply.error["message"]) <= 1001


def test_fifteen_megabytes_hold_nobody_up(server: Served) -> None:
    """Five seconds before values were counted."""
    body = b'{"prompt":[%s[1]]}' % (b"[1]," * (15 * 2**20 // 4 - 10))
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            worst, last = max(worst, now - last), now

    watching = asyncio.run_coroutine_threadsafe(watch(), server.loop)
    try:
        assert server.send("POST", "/v1/completions", body).status == 413
    finally:
        watching.cancel()
    assert worst < 2.0
