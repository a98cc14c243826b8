"""What is wrong is refused by the name of its field, and whoever comes next does not notice."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import pytest

from headstock.core.text import ChatTemplate
from headstock.entrypoints.server.chat import TAKEN
from support.http_server import Reply, Served

VOCABULARY = 300
"""More ids than the small model has."""
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "the fox", "max_tokens": 4}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 4}
GOOD: dict[str, Any] = {"prompt": "the fox", "max_tokens": 6, "temperature": 0, "ignore_eos": True}

NOT_INTEGERS: list[Any] = ["3", 1.5, True, [], {}, float("nan"), float("inf"), 10**12, 10**30, -(2**70)]
NOT_NUMBERS: list[Any] = ["0.5", True, [], {}, float("nan"), float("inf"), -float("inf"), 1e300, -3]
NOT_SWITCHES: list[Any] = ["true", 1, []]
TOKEN_IDS: list[Any] = [
    [-1],
    [VOCABULARY],
    [2**31],
    [2**63],
    [2**70],
    [1.5],
    [True],
    ["1"],
    [None],
    [[1]],
    "1",
    1,
    {"1": 1},
]

INTEGERS = {
    "n": [*NOT_INTEGERS, 0, -1, 100_000],
    "top_k": [*NOT_INTEGERS, -2],
    "seed": ["3", 1.5, True, [], float("nan"), 10**30, 2**63],
    "max_tokens": [*NOT_INTEGERS, -1],
    "min_tokens": [*NOT_INTEGERS, -1, 5],
    "prompt_logprobs": [*NOT_INTEGERS, -1, 21, 10**6],
    "priority": ["3", 1.5, True, [], 7, -1],
}
NUMBERS = {
    "temperature": [*NOT_NUMBERS[:-2], -1],
    "top_p": [*NOT_NUMBERS, 0, 1.5],
    "min_p": [*NOT_NUMBERS, 1.5],
    "presence_penalty": [*NOT_NUMBERS, 2.5],
    "frequency_penalty": [*NOT_NUMBERS, 2.5],
    "repetition_penalty": [*NOT_NUMBERS, 0, 1e-308],
}
SWITCHES = ("ignore_eos", "stream", "include_stop_str_in_output", "skip_special_tokens", "return_token_ids")
BIASES: list[Any] = [
    {"AI": 1},
    {"1.5": 1},
    {"": 1},
    {str(VOCABULARY): 1},
    {"-1": 1},
    {"--1": 1},
    {"-": 1},
    {"01": 1},
    {"-0": 1},
    {"+1": 1},
    {"\u0661": 1},
    {"1\n": 1},
    {str(2**63): 1},
    {"1": "x"},
    {"1": float("nan")},
    {"1": None},
    {"1": []},
    [1],
    "1",
]
STOPS: list[Any] = ["", [""], [1], [None], 1, {}, ["a"] * 65, "x" * 1025, [["a"]], "\ud800", ["a", "\udc00"]]
SALTS: list[Any] = ["x" * 1025, "", 1, [], {}, "a\ud800"]


def both(field: str, values: list[Any]) -> list[tuple[str, str, Any]]:
    return [(path, field, value) for path in ("/v1/completions", "/v1/chat/completions") for value in values]


SHARED = [
    *[case for field, values in INTEGERS.items() for case in both(field, values)],
    *[case for field, values in NUMBERS.items() for case in both(field, values)],
    *[case for field in SWITCHES for case in both(field, NOT_SWITCHES)],
    *both("stop_token_ids", TOKEN_IDS),
    *both("allowed_token_ids", [*TOKEN_IDS, []]),
    *both("logit_bias", BIASES),
    *both("stop", STOPS),
    *both("cache_salt", SALTS),
    *both("stream_options", [{"include_usage": True}, 1, [], "x"]),
    *both("model", [1, [], {}]),
    *both("suffix", ["x"]),
    *both("tools", [[{"type": "function"}]]),
    *both("response_format", [{"type": "json_object"}]),
    *both("guided_json", [{"type": "object"}]),
    *both("chat_template", ["{{ 1 }}"]),
    *both("use_beam_search", [True]),
    *both("structured_outputs", [{"regex": "["}]),
    *[("/v1/completions", "prompt", value) for value in TOKEN_IDS if value not in (["1"], [[1]], "1")],
    *[
        ("/v1/completions", "prompt", value)
        for value in ("x " * 10**6, ["a", ""], "", [], "\ud800", "a\udfff", None, [1] * 256, [1] * 5000)
    ],
    *[("/v1/completions", "logprobs", value) for value in [*NOT_INTEGERS, -1, 21, 10**6]],
    *[("/v1/completions", "echo", value) for value in NOT_SWITCHES],
    *[("/v1/completions", "best_of", value) for value in (0, 2, "1", 10**12)],
    ("/v1/completions", "max_tokens", 0),
    *[("/v1/chat/completions", "messages", value) for value in (None, [], "hi", 1, {}, [{"content": "x" * 300}])],
    *[("/v1/chat/completions", "logprobs", value) for value in (1, "true", [])],
    *[("/v1/chat/completions", "max_completion_tokens", value) for value in ("3", 1.5, True, 0, -1)],
    *[
        ("/v1/chat/completions", "chat_template_kwargs", value)
        for value in (1, [], "x", {"v": ["\ud800"]}, {"\ud800": 1}, *({n: 1} for n in TAKEN))
    ],
    ("/v1/chat/completions", "top_logprobs", 3),
]
PLACES = {
    "prompt": ("prompt", "prompt[0]", "prompt[1]"),
    "messages": ("messages", "messages[0].role", "messages[0].content"),
    "min_tokens": ("min_tokens", "max_tokens"),
    "max_completion_tokens": ("max_completion_tokens", "max_tokens"),
}
"""Field → what the error may name, where that is not the field alone."""


def name_of(case: tuple[str, str, Any]) -> str:
    return f"{case[0].split('/')[2]} {case[1]}={json.dumps(case[2])[:24]}"


def body_of(path: str, field: str, value: Any) -> dict[str, Any]:
    return (CHAT if "chat" in path else COMPLETION) | {field: value}


@pytest.fixture(scope="module")
def expected(server: Served) -> str:
    """What the good request is answered with."""
    return text_of(server.post("/v1/completions", **GOOD))


def text_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["text"]


@pytest.mark.parametrize("case", SHARED, ids=name_of)
def test_a_bad_field_is_named_and_the_next_request_is_served(
    server: Served, expected: str, case: tuple[str, str, Any]
) -> None:
    path, field, value = case
    reply = server.send("POST", path, body_of(path, field, value))
    assert 400 <= reply.status < 500, reply.body
    place = reply.error["param"] or ""
    assert place in PLACES.get(field, (field,)) or place.startswith((f"{field}[", f"{field}.")), reply.error
    assert place in reply.error["message"]
    assert text_of(server.post("/v1/completions", **GOOD)) == expected


def test_there_are_more_than_a_hundred_of_them() -> None:
    assert len(SHARED) > 300


def test_their_neighbours_in_the_batch_do_not_notice(server: Served) -> None:
    long = {"prompt": [7] * 20, "max_tokens": 200, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    alone = text_of(server.post("/v1/completions", **long))
    found: list[str] = []
    neighbours = [
        threading.Thread(target=lambda: found.append(text_of(server.post("/v1/completions", **long)))) for _ in range(4)
    ]
    for thread in neighbours:
        thread.start()
    for path, field, value in SHARED[::12]:
        assert server.send("POST", path, body_of(path, field, value)).status >= 400
    for thread in neighbours:
        thread.join()
    assert found == [alone] * 4


@pytest.mark.parametrize(
    ("field", "messages"),
    [
        ("messages[0].role", [{"content": "x"}]),
        ("messages[0].role", [{"role": 1, "content": "x"}]),
        ("messages[1].content", [{"role": "user", "content": "x"}, {"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": 1}]),
        ("messages[0].content", [{"role": "user", "content": "\ud83d"}]),
        ("messages[0].content[0]", [{"role": "user", "content": ["x"]}]),
        ("messages[0]", ["x"]),
        ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("messages", [{"role": "user", "content": "x" * 400}]),
    ],
)
def test_messages_are_named_to_the_place(server: Served, expected: str, field: str, messages: Any) -> None:
    reply = server.post("/v1/chat/completions", model="tiny", messages=messages)
    assert (reply.status, reply.error["param"]) == (400, field)
    assert text_of(server.post("/v1/completions", **GOOD)) == expected


SMALL = {"role": "user", "content": "x"}
TOO_MANY: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": [{"role": "user", "content": "the fox " * 10**5}] * 4}),
    ("messages", {"messages": [{"role": "x" * 10**6, "content": "x"}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "the fox " * 10**5}]}]}),
    ("messages", {"messages": [SMALL] * 10**5}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 10**5}]}),
    ("messages", {"messages": [SMALL | {"tool_calls": [{"arguments": "x" * 10**6}]}]}),
    ("chat_template_kwargs", {"messages": [SMALL], "chat_template_kwargs": {f"v{i}": 1 for i in range(1000)}}),
    ("chat_template_kwargs", {"messages": [SMALL], "chat_template_kwargs": {"v": ["x" * 10**6]}}),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(("field", "body"), TOO_MANY, ids=range(len(TOO_MANY)))
def test_a_conversation_that_cannot_fit_is_not_rendered(
    server: Served, monkeypatch: pytest.MonkeyPatch, path: str, field: str, body: dict[str, Any]
) -> None:
    rendered: list[Any] = []
    monkeypatch.setattr(ChatTemplate, "render", lambda *args, **_: rendered.append(args))
    reply = server.post(path, **body)
    assert (reply.status, reply.error["param"]) == (400, field)
    assert reply.error["message"].startswith(f"{field}: has ")
    assert not rendered


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {f"x{i}": "x" for i in range(1000)}),
        ("stop_token_ids", ["x"] * 1000),
        ("allowed_token_ids", ["x"] * 1000),
        ("x0", dict.fromkeys(f"x{i}" for i in range(1000))),
    ],
)
def test_more_entries_than_anybody_means_are_counted_before_they_are_looked_at(
    server: Served, field: str, value: Any
) -> None:
    many_fields = field == "x0"
    reply = server.post("/v1/completions", **GOOD, **(value if many_fields else {field: value}))
    assert (reply.status, reply.error["param"]) == (400, None if many_fields else field)
    assert "more than the" in reply.error["message"]


def test_parts_are_joined_to_lines(server: Served) -> None:
    parts = [{"type": "text", "text": "the fox"}, {"type": "text", "text": "the dog"}]
    told = [server.post("/tokenize", messages=[{"role": "user", "content": c}]) for c in (parts, "the fox\nthe dog")]
    assert told[0].status == 200
    assert told[0].json == told[1].json


@pytest.mark.parametrize("value", [[-1], [VOCABULARY], [2**70], [1.5], ["1"], [True], 1, None, {}])
def test_detokenize_takes_ids_of_the_vocabulary_only(server: Served, value: Any) -> None:
    reply = server.post("/detokenize", tokens=value)
    assert reply.status == 400
    assert (reply.error["param"] or "").startswith("tokens")


@pytest.mark.parametrize("body", [{}, {"prompt": 1}, {"prompt": "a", "messages": []}, {"prompt": "\ud800"}])
def test_tokenize_says_what_it_wants(server: Served, body: Any) -> None:
    reply = server.post("/tokenize", **body)
    assert (reply.status, reply.error["param"]) == (400, "prompt")


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "cut off": b'{"prompt": "a"',
    "two documents": b"{} {}",
    "a list": b"[]",
    "text": b'"prompt"',
    "null": b"null",
    "a number": b"1e5",
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "single quotes": b"{'prompt': 'a'}",
    "deep lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a control character": b'{"prompt": "a\x00b"}',
    "no colon": b'{"prompt" "a"}',
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_json_object_is_refused(server: Served, expected: str, path: str, kind: str) -> None:
    reply = server.send("POST", path, BROKEN[kind])
    assert reply.status == 400
    assert reply.error["code"] == "invalid_json"
    assert text_of(server.post("/v1/completions", **GOOD)) == expected


def test_deep_messages_that_parse_are_refused_too(server: Served) -> None:
    content: Any = "x"
    for _ in range(400):
        content = [{"type": "text", "text": content}]
    reply = server.post("/v1/chat/completions", messages=[{"role": "user", "content": content}])
    assert 400 <= reply.status < 500
    assert reply.error


def test_an_integer_of_ten_thousand_digits_is_named(server: Served) -> None:
    reply = server.send("POST", "/v1/completions", b'{"prompt": "a", "seed": 1' + b"0" * 10_000 + b"}")
    assert (reply.status, reply.error["param"]) == (400, "seed")


@pytest.mark.parametrize(
    "fields", [{"prompt": "a " * 5_000_000}, {"prompt": [1] * 500_000}, {"prompt": "a", "x": "y" * 10**7}]
)
def test_megabytes_that_are_allowed_are_refused_for_their_meaning(server: Served, expected: str, fields: Any) -> None:
    reply = server.post("/v1/completions", **fields, n=0)
    assert (reply.status, reply.error["param"]) == (400, "n")
    assert text_of(server.post("/v1/completions", **GOOD)) == expected


def test_messages_quote_no_more_than_a_little_of_what_was_sent(server: Served) -> None:
    reply = server.post("/v1/completions", prompt="a", logit_bias={"x" * 10**6: 1})
    assert reply.status == 400
    assert len(reply.body) < 2000


def test_unknown_fields_are_ignored_and_told_of(server: Served) -> None:
    reply = server.post("/v1/completions", **GOOD, temprature=3, zebra=[1], user="me", tool_choice="none")
    assert reply.status == 200
    assert reply.headers["x-ignored-fields"] == "temprature, zebra"


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_cannot_forge_headers(server: Served, stream: bool) -> None:
    reply = server.post(
        "/v1/completions", **{**GOOD, "stream": stream, "a\r\nX-Forged: 1": 1, "größe": 2, "x" * 9000: 3}
    )
    assert reply.status == 200
    assert "x-forged" not in reply.headers
    assert reply.headers["x-ignored-fields"].startswith("a??X-Forged: 1, gr??e, xxx")


def test_more_prompts_than_the_queue_holds_are_refused_at_once(server: Served) -> None:
    for prompts, problem in ((3000, "holds 3000 texts"), (1000, "asks for 2000 answers")):
        reply = server.post("/v1/completions", prompt=[[1]] * prompts, n=2)
        assert (reply.status, reply.error["param"]) == (400, "prompt")
        assert problem in reply.error["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/completions", 405), ("POST", "/v2", 404)])
def test_paths_that_are_not_there_say_so_in_the_same_shape(server: Served, method: str, path: str, status: int) -> None:
    reply = server.send(method, path, {} if method == "POST" else None)
    assert reply.status == status
    assert reply.error["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data; x=y"])
def test_only_json_is_read(server: Served, kind: str) -> None:
    reply = server.send("POST", "/v1/completions", b'{"prompt": "a"}', {"Content-Type": kind})
    assert (reply.status, reply.error["param"]) == (415, "Content-Type")


def test_compressed_bodies_are_refused_as_such(server: Served) -> None:
    body = gzip.compress(b'{"prompt": "a", "max_tokens": 1}')
    reply = server.send("POST", "/v1/completions", body, {"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["param"]) == (415, "Content-Encoding")
    same = server.send("POST", "/v1/completions", gzip.decompress(body), {"Content-Encoding": "Identity"})
    assert same.status == 200


@pytest.mark.parametrize(
    "ends", [{"allowed_token_ids": [7, 9], "stop_token_ids": [9, 7, 3]}, {"allowed_token_ids": "eos"}]
)
def test_an_answer_that_could_only_end_has_no_least_length(server: Served, ends: Any) -> None:
    fields = {**ends, "min_tokens": 1, "max_tokens": 3, "prompt": "a"}
    if fields["allowed_token_ids"] == "eos":
        fields["allowed_token_ids"] = list(server.state.llm.client.info.eos_token_ids)
    reply = server.post("/v1/completions", **fields)
    assert (reply.status, reply.error["param"]) == (400, "min_tokens")
    assert server.post("/v1/completions", **{**fields, "min_tokens": 0}).status == 200
    everything = list(range(server.state.vocab_size))
    reply = server.post("/v1/completions", prompt="a", stop_token_ids=everything, min_tokens=1)
    assert (reply.status, reply.error["param"]) == (400, "min_tokens")
