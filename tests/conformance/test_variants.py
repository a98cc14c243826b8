"""Backends that are right in a way of their own conform: a check that fails them would be too strict."""

from __future__ import annotations

import pytest
from conformance.mutants.catching import first_failure
from conformance.mutants.variants import VARIANTS

OFTEN = ("RoundedWeights",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.heavy) for n in VARIANTS])
def test_it_conforms(name):
    failure = first_failure(name, VARIANTS[name])
    assert failure is None, (failure.case, failure.reason, failure.problem)
