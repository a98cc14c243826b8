"""Which of several engines gets a request, by the books alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.engine.lives import routing
from headstock.core.engine.lives.routing import CHUNK, Balance
from headstock.core.scheduler import EngineCoreOutput, EngineRequest
from support.lives import request


def end(request_id: str) -> list[EngineCoreOutput]:
    return [EngineCoreOutput(request_id=request_id, finish_reason="stop")]


def prompt(start: int, chunks: int) -> list[int]:
    return list(range(start, start + chunks * CHUNK))


def test_the_least_loaded_engine_is_taken_requests_before_tokens() -> None:
    balance = Balance(3)
    assert [balance.place(request(f"r{i}", [i])) for i in range(5)] == [0, 1, 2, 0, 1]
    balance.release(end("r1"))
    balance.release(end("r4"))
    assert balance.place(request("r5", [9] * 50)) == 1
    assert balance.place(request("r6", [9])) == 2  # one request each, of 50 tokens and of one
    balance.release([EngineCoreOutput(request_id="r6", new_token_ids=(1,))])
    assert balance.drop(["r6", "r6", "unknown"]) == {2: ("r6",)}


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    balance = Balance(2)
    first = balance.place(request("a", prompt(0, 3)))
    other = balance.place(request("b", prompt(1000, 3)))
    assert {first, other} == {0, 1}
    assert balance.place(request("c", prompt(0, 2) + [7] * 90)) == first
    assert balance.place(request("d", prompt(1000, 1))) == other
    assert balance.place(request("e", [*prompt(0, 1)[:-1], 5])) == other  # not a whole chunk in common
    salted = replace(request("f", prompt(0, 3)), cache_salt="mine")
    assert balance.place(salted) == first if balance._requests[0] <= balance._requests[1] else other


def test_a_cached_beginning_does_not_outweigh_a_heap_of_work() -> None:
    balance = Balance(2)
    placed = [balance.place(request(f"r{i}", prompt(0, 2))) for i in range(40)]
    assert placed[:5] == [placed[0]] * 5
    counts = [placed.count(0), placed.count(1)]
    assert max(counts) - min(counts) <= max(routing.LEAST_SLACK, min(counts) // 4) + 1


def test_a_session_stays_where_it_began() -> None:
    balance = Balance(4)
    home = balance.place(replace(request("first", [1]), session="s"))
    for i in range(20):
        assert balance.place(replace(request(f"r{i}", [i]), session="s")) == home
    assert balance.place(replace(request("x", [1]), session="t")) != home


def test_what_is_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REMEMBERED", 10)
    balance = Balance(2)
    for i in range(100):
        balance.place(request(f"r{i}", prompt(1000 * i, 4)))
    assert len(balance._chunks) == 10


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
def test_the_books_add_up(traffic: list[tuple[int, bool]]) -> None:
    balance, live = Balance(3), dict[str, EngineRequest]()
    for number, (kind, ends) in enumerate(traffic):
        each = replace(request(f"r{number}", prompt(kind * 1000, kind)), session="s" if kind == 5 else None)
        balance.place(each)
        live[each.request_id] = each
        if ends:
            gone = next(iter(live))
            del live[gone]
            balance.release(end(gone)) if kind % 2 else balance.drop([gone])
        assert sum(balance._requests) == len(live) == len(balance._owners)
        assert sum(balance._tokens) == sum(len(r.prompt_token_ids) for r in live.values())
