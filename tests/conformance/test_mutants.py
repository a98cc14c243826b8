"""Every deliberately wrong backend is caught at level quick, by a check of the convention that it breaks."""

from __future__ import annotations

import pytest
from conformance.mutants.base import MUTANTS, Plain
from conformance.mutants.catching import END, PAGE, START, first_failure, in_order, row

from headstock.plugins.conformance import CONVENTIONS

EARLY = list(CONVENTIONS)[: list(CONVENTIONS).index("window")]
"""Conventions whose mutants are stopped so soon that every run tries them all. Of the others it tries the first, and
`make test-heavy` the rest."""


def everyone() -> list:
    """All mutants, the heavy ones marked."""
    firsts = {cls.conventions[0]: name for name, cls in reversed(MUTANTS.items())}
    light = {name for name, cls in MUTANTS.items() if cls.conventions[0] in EARLY} | set(firsts.values())
    return [pytest.param(name, marks=() if name in light else pytest.mark.heavy) for name in MUTANTS]


def table() -> dict[str, str]:
    """The lines of the page, by mutant."""
    text = PAGE.read_text("utf-8").partition(START)[2].partition(END)[0]
    return {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()[3:]}


def test_there_is_one_for_every_convention():
    assert {convention for cls in MUTANTS.values() for convention in cls.conventions} == set(CONVENTIONS)
    assert len(MUTANTS) >= 40


def test_the_page_lists_them_all():
    assert list(table()) == list(in_order())


@pytest.mark.parametrize("name", everyone())
def test_it_is_caught_by_its_convention_and_as_the_page_says(name):
    cls = MUTANTS[name]
    failure = first_failure(name, cls)
    assert failure is not None, "it conforms"
    assert failure.convention in cls.conventions, (failure.case, failure.reason)
    assert ("raised" in failure.reason) == cls.raises, failure.reason
    assert row(cls, failure) == table()[name]


@pytest.mark.heavy
def test_what_they_are_made_of_conforms():
    assert first_failure("plain", Plain) is None
