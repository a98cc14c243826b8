"""Checking a backend: which cases there are, and running them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import chain
from typing import Literal

from ...core.errors import InvalidInput
from .case import MIXED, Case, Outcome, run
from .catalogue import named_cases
from .generated import generated_cases, mixed_case
from .ground import find_ground
from .subject import Subject

Level = Literal["quick", "full"]
GENERATED: dict[Level, int] = {"quick": 300, "full": 4000}
"""Made-up cases by level."""
MADE_SMALL = 3
"""Made-up cases that fail and are made smaller: the rest mostly fail for the same reason."""


def cases_for(subject: Subject, *, level: Level = "quick", seed: int = 0) -> Iterator[Case]:
    """Every case of `level`; those that the backend does not offer will be skipped.

    Raises `Broken` where it offers no plain layer to begin with.
    """
    ground = find_ground(subject)
    return chain(named_cases(ground, full=level == "full"), generated_cases(ground, GENERATED[level], seed))


def select(subject: Subject, wanted: str) -> list[Case]:
    """The cases whose id is `wanted` or matches it as a pattern; ``mixed:PROBLEM`` is any problem, as text.

    Raises `InvalidInput` where there is none.
    """
    if wanted.startswith(f"{MIXED}:"):
        return [mixed_case(wanted.removeprefix(f"{MIXED}:"))]
    found = [case for case in named_cases(find_ground(subject), full=True) if fnmatchcase(case.id, wanted)]
    if not found:
        raise InvalidInput("case", f"{wanted!r} is no case of {subject.name}; ids are in the output of --json")
    return found


def check(subject: Subject, cases: Iterable[Case], *, stop_at_first: bool = False) -> Iterator[Outcome]:
    """Run cases one after the other. Of made-up ones, the first few that fail are made smaller."""
    made_small = 0
    for case in cases:
        outcome = run(case, subject, make_small=made_small < MADE_SMALL)
        made_small += outcome.status == "failed" and case.convention == MIXED
        yield outcome
        if stop_at_first and outcome.status == "failed":
            return
