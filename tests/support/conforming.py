"""The conformance kit over a backend, in a test: which cases, and what failed."""

from __future__ import annotations

from typing import Any

from headstock.core.attention import Device
from headstock.plugins.conformance import Subject, cases_for, check


def outcomes(
    cls: type,
    device: Device,
    *,
    level: str = "quick",
    seed: int = 0,
    made_up: int | None = None,
    only: set[str] | None = None,
    options: Any = None,
) -> list:
    """Every named case of `level`, and `made_up` of those that are made up (None: all); or `only` some conventions."""
    subject = Subject(name=cls.__name__, cls=cls, device=device, options=options)
    cases = list(cases_for(subject, level=level, seed=seed))
    if made_up is not None:
        mixed = [case.convention for case in cases].index("mixed")
        del cases[mixed + made_up :]
    if only is not None:
        cases = [case for case in cases if case.convention in only]
    return list(check(subject, cases))


def failed(found: list) -> list:
    return [(o.case, o.reason, o.problem) for o in found if o.status == "failed"]


def passed(found: list) -> set[str]:
    """Conventions of which a case passed."""
    return {o.convention for o in found if o.status == "passed"}
