"""What is streamed is what is given at once: stop strings, characters, usage and reasons, wherever the cuts are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headstock.core.engine import EngineCore
from headstock.core.model import ModelFolder
from headstock.core.text import Tokenizer
from headstock.entrypoints.server.streams import encode
from support.http_server import Reply, Served, served
from support.scripted import follow, spell

EOS = "<|end|>"
LENGTH = 64
"""Of the served model, prompt and answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the model says, and what is to be seen of it."""

    says: tuple[str | bytes, ...]
    text: str
    reason: str = "length"
    stop_reason: str | None = None
    asks: dict[str, Any]


def case(*says: str | bytes, text: str, reason: str = "length", matched: str | None = None, **asks: Any) -> Case:
    return Case(says=says, text=text, reason=reason, stop_reason=matched, asks=asks)


STOPS = {
    "over tokens": case(
        "D", "E", "F", "G", "H", "I", "J", "K", text="", reason="stop", matched="DEFGHIJ", stop="DEFGHIJ"
    ),
    "not after all": case("DEFX", text="DEFX", max_tokens=4, stop="DEFGHIJ"),
    "from inside a token": case(
        "The quick br", "own", " fox", text="The quick br", reason="stop", matched="own fox", stop="own fox"
    ),
    "inside a token": case("a", "größe", "b", text="ag", reason="stop", matched="röß", stop=["röß"]),
    "the earlier of two": case("xabc", text="x", reason="stop", matched="ab", stop=["abc", "ab"]),
    "the first of equals": case("xabc", text="xa", reason="stop", matched="bc", stop=["bc", "abc"][:1]),
    "incomplete at the end": case("abSTO", text="abSTO", max_tokens=5, stop="STOP"),
    "included": case(
        "abSTOPcd", text="abSTOP", reason="stop", matched="STOP", stop="STOP", include_stop_str_in_output=True
    ),
    "at the last token": case("abSTOP", text="ab", reason="stop", matched="STOP", stop="STOP", max_tokens=6),
    "not before min_tokens": case("STOPxSTOP", text="STOPx", reason="stop", matched="STOP", stop="STOP", min_tokens=5),
    "held until it is certain": case("ababac", text="ab", reason="stop", matched="abac", stop="abac"),
}
CHARACTERS = {
    "two bytes": case(b"\xc4", b"\x8f", text="ď", max_tokens=2),
    "a merge and two bytes": case(b"\xf0\x9f", b"\x8c", b"\xb6", text="🌶", max_tokens=3),
    "broken off by a space": case(b"\xf0\x9f", " ", "x", text="\ufffd x", max_tokens=3),
    "a lone continuation": case("a", b"\x80", "b", text="a\ufffdb", max_tokens=3),
    "the end in the middle": case("a", b"\xf0\x9f", text="a\ufffd", max_tokens=2),
    "a real U+FFFD": case("\ufffd", "a", text="\ufffda", max_tokens=4),
    "two broken ones": case(b"\xf0\x9f", b"\xf0\x9f", b"\x8c", text="\ufffd\ufffd", max_tokens=3),
}
REASONS = {
    "the end first": case(EOS, text="", reason="stop"),
    "the end at max_tokens": case("abc", EOS, text="abc", reason="stop", max_tokens=4),
    "length": case("abcdef", text="abc", max_tokens=3),
    "no end before min_tokens": case("ab", EOS, "cd", EOS, text="abcd", reason="stop", min_tokens=4),
    "the end ignored": case("a", EOS, "b", text="ab", max_tokens=3, ignore_eos=True),
    "the model's length": case("a" * 200, text="a" * 62, max_tokens=1000),
    "a stop token": case("abc", text="ab", reason="stop", matched="c", stop_token_ids="c"),
}
CASES = {**STOPS, **CHARACTERS, **REASONS}


@pytest.fixture(scope="module")
def tokenizer(folder: ModelFolder) -> Tokenizer:
    return Tokenizer.from_folder(folder.path)


def ids_of(tokenizer: Tokenizer, case: Case) -> list[int]:
    end = tokenizer.eos_token_ids[0]
    return [i for piece in case.says for i in ((end,) if piece == EOS else spell(tokenizer, piece))]


def prompt_of(name: str) -> list[int]:
    """Two ids that are no other case's."""
    return [7, 10 + list(CASES).index(name)]


@pytest.fixture(scope="module")
def server(folder: ModelFolder, tokenizer: Tokenizer) -> Iterator[Served]:
    script = {tuple(prompt_of(name)): ids_of(tokenizer, case) for name, case in CASES.items()}

    def prepare(core: EngineCore) -> None:
        follow(core, script)

    with served(folder, engine={"max_model_len": LENGTH}, prepare=prepare) as running:
        yield running


@pytest.fixture
def ask(server: Served, tokenizer: Tokenizer) -> Callable[..., Reply]:
    """The request of a case."""

    def send(name: str, **more: Any) -> Reply:
        asks = dict(CASES[name].asks)
        if isinstance(ids := asks.get("stop_token_ids"), str):
            asks["stop_token_ids"] = list(spell(tokenizer, ids))
        reply = server.post("/v1/completions", **{"prompt": prompt_of(name), "max_tokens": 40, **asks, **more})
        assert reply.status == 200, reply.body
        return reply

    return send


@pytest.mark.parametrize("name", CASES)
def test_an_answer_has_its_text_and_reason_streamed_or_not(
    ask: Callable[..., Reply], tokenizer: Tokenizer, name: str
) -> None:
    expected = CASES[name]
    (choice,) = ask(name).json["choices"]
    events = ask(name, stream=True).events
    matched: Any = expected.stop_reason
    if "stop_token_ids" in expected.asks:
        matched = spell(tokenizer, expected.stop_reason or "")[0]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, expected.reason)
    assert choice["stop_reason"] == matched
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == expected.text
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [expected.reason]
    assert pieces[-1]["stop_reason"] == matched
    assert all(piece["text"] for piece in pieces[:-1]), "a chunk that says nothing"


@pytest.mark.parametrize("name", CHARACTERS)
def test_several_answers_at_once_do_not_mix_their_characters(ask: Callable[..., Reply], name: str) -> None:
    assert ask(name, stream=True, n=3).texts() == dict.fromkeys(range(3), CASES[name].text)


@pytest.mark.parametrize("name", ["the end ignored", "length", "over tokens"])
def test_no_usage_where_none_is_wanted(ask: Callable[..., Reply], name: str) -> None:
    for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        assert all("usage" not in event for event in ask(name, stream=True, **options).events)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("name", "tokens"),
    [("the end first", 1), ("length", 3), ("over tokens", 7), ("two bytes", 2), ("not after all", 4)],
)
def test_usage_counts_tokens_not_chunks(ask: Callable[..., Reply], name: str, tokens: int, n: int) -> None:
    counts = {"prompt_tokens": 2, "completion_tokens": n * tokens, "total_tokens": 2 + n * tokens}
    whole = ask(name, n=n).json["usage"]
    *chunks, last = ask(name, n=n, stream=True, stream_options={"include_usage": True}).events
    assert last["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    for usage in (whole, last["usage"]):
        assert {key: usage[key] for key in counts} == counts


def test_running_usage_grows_to_the_last(ask: Callable[..., Reply]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = ask("length", stream=True, stream_options=options).events
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]
    assert last["usage"] == chunks[-1]["usage"]


def test_a_chat_begins_with_its_role_and_ends_with_a_reason(server: Served) -> None:
    events = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4, stream=True, n=2
    ).events
    choices = [event["choices"][0] for event in events]
    assert [c["delta"] for c in choices[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert sorted(c["index"] for c in choices if c["finish_reason"]) == [0, 1]
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_no_text_ends_a_line_of_a_stream() -> None:
    said = "".join(map(chr, range(0x3000)))
    line = encode({"text": said}).decode()
    assert line.splitlines() == [line]
    assert json.loads(line) == {"text": said}
    assert "größe".encode() in encode("größe")
