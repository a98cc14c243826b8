"""The built-in backends keep every convention."""

from __future__ import annotations

import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Device
from headstock.plugins.conformance import CONVENTIONS, Subject, cases_for, check

CPU = Device(platform="cpu", name="test CPU", arch="x86_64")
BACKENDS = {"sdpa": SdpaBackend, "reference": ReferenceBackend}


def outcomes(name: str, level: str, *, seed: int = 0, made_up: int | None = None) -> list:
    subject = Subject(name=name, cls=BACKENDS[name], device=CPU)
    cases = list(cases_for(subject, level=level, seed=seed))
    if made_up is not None:
        mixed = [case.convention for case in cases].index("mixed")
        del cases[mixed + made_up :]
    return list(check(subject, cases))


def failed(found: list) -> list:
    return [(o.case, o.reason, o.problem) for o in found if o.status == "failed"]


def test_sdpa_conforms():
    assert failed(outcomes("sdpa", "quick")) == []


def test_the_reference_conforms_and_is_asked_about_everything():
    found = outcomes("reference", "quick", made_up=40)
    assert failed(found) == []
    assert set(CONVENTIONS) - {o.convention for o in found if o.status == "passed"} == {"graph"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_they_conform_at_level_full(name, seed):
    assert failed(outcomes(name, "full", seed=seed)) == []
