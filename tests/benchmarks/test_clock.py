"""Times of calls: a card's events around a call that finds nothing in the caches, with a double of torch's."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from headstock.benchmarks import clock
from headstock.plugins import Guard
from headstock.selector import profile
from support.attention import CPU

CARD = replace(profile("h100"), assumed=False, index=1)


@pytest.fixture
def card(monkeypatch):
    """What is done on the card, in order; a call takes 1.5 ms there."""
    done: list[str] = []

    class Event:
        made = 0

        def __init__(self, *, enable_timing):
            assert enable_timing
            self.name = ("begin", "end")[Event.made % 2]
            Event.made += 1

        def record(self):
            done.append(f"{self.name} recorded")

        def synchronize(self):
            done.append(f"waited for {self.name}")

        def elapsed_time(self, end):
            assert done[-1] == "waited for end"
            return 1.5

    scratch = SimpleNamespace(zero_=lambda: done.append("caches emptied"))
    monkeypatch.setattr(clock, "_scratch", lambda device: scratch)
    cuda = SimpleNamespace(Event=Event, device=lambda device: done.append(str(device)) or nullcontext())
    monkeypatch.setattr(torch, "cuda", cuda)
    return done


def test_a_card_tells_the_time_of_a_call_that_finds_empty_caches(card):
    assert clock.seconds_of(lambda: card.append("call"), "cuda:1") == 1.5e-3
    assert card == ["cuda:1", "caches emptied", "begin recorded", "call", "end recorded", "waited for end"]


def test_the_host_tells_the_time_of_others():
    calls: list[int] = []
    assert 0 < clock.seconds_of(lambda: calls.append(1)) < 10
    assert calls == [1]


def test_what_is_written_is_more_than_a_cache_holds(monkeypatch):
    monkeypatch.setattr(clock, "FLUSHED_BYTES", 4096)
    assert clock._scratch(torch.device("cpu")).nbytes == 4096
    clock._scratch.cache_clear()


def test_the_clock_of_a_card_is_noted_where_something_tells(monkeypatch):
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda index: 1980 if index == 1 else 0)
    assert clock.clock_rate(CARD, Guard()) == 1980
    assert clock.clock_rate(CPU, Guard()) is None

    def missing(index):
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "clock_rate", missing)
    assert clock.clock_rate(CARD, Guard()) is None
