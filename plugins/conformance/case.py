"""`Case`: one thing that is checked, and `Outcome`: how it went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Literal

from .broken import Broken, Skipped
from .problem import Problem
from .shrink import Judge, failure, shrink
from .subject import Subject

MIXED = "mixed"
"""The convention of generated cases."""
Status = Literal["passed", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One check of one convention."""

    convention: str
    """A key of `CONVENTIONS`."""
    name: str
    """What tells it from other cases of the convention."""
    problem: Problem
    """Batch, layer and seed; a judge may derive further problems from it."""
    judge: Judge

    @property
    def id(self) -> str:
        return f"{self.convention}:{self.name}"


Draft = tuple[str, Judge, Problem]
"""Name, judge and problem of a case, before it is known which convention it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one case went."""

    case: str
    """Its id."""
    convention: str
    """The convention it is about or, where it failed, the one that turned out broken."""
    status: Status
    reason: str = ""
    """Skipped: what the backend declares. Failed: what was seen."""
    problem: str = ""
    """Failed: the smallest problem found that fails alike, as text."""
    seconds: float = field(default=0.0, compare=False)


def run(case: Case, subject: Subject, *, make_small: bool = True) -> Outcome:
    """Try one case, and where a made-up one fails look for a smaller one. Only the kit's own mistakes raise."""
    started = time.perf_counter()

    def outcome(status: Status, convention: str = "", reason: str = "", problem: str = "") -> Outcome:
        return Outcome(
            case=case.id,
            convention=convention or case.convention,
            status=status,
            reason=reason,
            problem=problem,
            seconds=time.perf_counter() - started,
        )

    try:
        if reasons := subject.reasons(case.problem):
            return outcome("skipped", reason="; ".join(reasons))
        case.judge(subject, case.problem)
    except Skipped as reason:
        return outcome("skipped", reason=str(reason))
    except Broken as broken:
        if subject.lost:
            return outcome("failed", broken.convention, broken.problem, str(case.problem))
        convention, problem = broken.convention or (_leak(case, subject) if broken.stray else ""), case.problem
        if case.convention == MIXED and make_small:
            problem, broken = shrink(subject, problem, case.judge, broken)
        return outcome("failed", convention, broken.problem, str(problem))
    return outcome("passed")


def _leak(case: Case, subject: Subject) -> str:
    """``unowned`` where a case fails for nothing but the NaN in slots that no sequence owns."""
    clean = replace(case.problem, poison="zero")
    if case.problem.poison != "any" or failure(subject, clean, case.judge) is not None:
        return ""
    return "unowned"
