"""Every deliberately wrong backend is caught at level quick, by a check of the convention that it breaks."""

from __future__ import annotations

from collections import Counter

import pytest
from conformance.mutants.base import MUTANTS, Plain
from conformance.mutants.catching import END, PAGE, START, first_failure, in_order, row

from headstock.plugins.conformance import CONVENTIONS

EACH = 2
"""Mutants of a convention that every run tries; the rest is for `make test-heavy`."""


def everyone() -> list:
    """All mutants, those beyond the first few of a convention marked as heavy."""
    seen: Counter[str] = Counter()
    params = []
    for name, cls in MUTANTS.items():
        seen.update(cls.conventions[:1])
        late = seen[cls.conventions[0]] > EACH
        params.append(pytest.param(name, marks=pytest.mark.heavy if late else ()))
    return params


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
