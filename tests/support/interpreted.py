"""The mark of tests that run Triton's kernels on a CPU, in Triton's interpreter."""

from __future__ import annotations

import importlib.util

import pytest

from headstock.backends.triton.environment import interpreting

HERE = interpreting() and importlib.util.find_spec("triton") is not None
interpreted = pytest.mark.skipif(
    not HERE, reason="needs triton and TRITON_INTERPRET=1, which the tests set where no card is"
)
