"""Backends that have to be built where they run: built when chosen, passed over with the reason where that fails."""

from __future__ import annotations

import pytest

from headstock.core.attention import Device
from headstock.core.errors import BackendError
from headstock.selector import Selector, explain, list_backends, read_policy
from support.attention import CPU
from support.backends import backend, layers, spec
from support.plugins import world

PLAIN = layers(spec(), spec())


def buildable(*errors: Exception | None) -> type:
    """A backend whose builds end like this, one after the other; `calls` counts them."""
    cls = backend("Built")
    cls.calls = 0

    def build(_: type) -> None:
        cls.calls += 1
        if error := errors[min(cls.calls, len(errors)) - 1]:
            raise error

    cls.build = classmethod(build)
    return cls


def test_what_is_chosen_is_built_once():
    cls, idle = buildable(None), buildable(None)
    selector = Selector(world({"able": cls}, {"idle": idle}))
    for _ in range(2):
        assert {choice.backend for choice in selector.select(PLAIN, CPU).choices.values()} == {"able"}
    assert (cls.calls, idle.calls) == (1, 0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BackendError("a.cpp:7: error: no such instruction"), "a.cpp:7: error: no such instruction"),
        (OSError("no space"), "build() raised OSError: no space"),
    ],
)
def test_left_open_the_next_is_taken_and_the_summary_says_why(error, reason):
    cls = buildable(error)
    selector = Selector(world({"able": cls}))
    selection = selector.select(PLAIN, CPU)
    assert {choice.backend for choice in selection.choices.values()} == {"sdpa"}
    assert {choice.origin for choice in selection.choices.values()} == {"ranked (2 of 3 on cpu)"}
    assert selection.summary()[1:] == (f"not able: {reason}",)
    selector.select(PLAIN, CPU)
    assert cls.calls == 1
    listed = {row.name: (row.verdict, row.reasons) for row in list_backends(selector, CPU).backends}
    assert listed["able"] == ("unavailable", (reason,))


def test_named_it_is_an_error_with_the_reason():
    selector = Selector(world({"able": buildable(BackendError("it is broken"))}), read_policy(attention_backend="able"))
    with pytest.raises(BackendError, match=r'"able", chosen by flag \(able\), cannot serve [^\n]*\n  it is broken\n'):
        selector.select(PLAIN, CPU)


def test_each_of_several_gets_its_turn():
    first, second = buildable(BackendError("one")), buildable(BackendError("two"))
    selection = Selector(world({"a": first, "b": second})).select(PLAIN, CPU)
    assert selection.summary()[1:] == ("not a: one", "not b: two")


def test_explaining_builds_nothing():
    cls = buildable(BackendError("it is broken"))
    selector = Selector(world({"able": cls}))
    assert explain(selector, PLAIN, CPU).groups[0].choice == "able"
    assert cls.calls == 0


def test_what_cannot_be_built_here_may_run_elsewhere():
    selector = Selector(world({"able": buildable(BackendError("it is broken"))}))
    selector.select(PLAIN, CPU)
    elsewhere = Device(platform="cpu", name="a profile", arch="x86_64", assumed=True)
    assert explain(selector, PLAIN, elsewhere).groups[0].choice == "able"
