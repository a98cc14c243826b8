"""Fixtures for tests of measurements."""

from __future__ import annotations

import sys

import pytest

from headstock.benchmarks.kernels.peer import PEERS
from support.tree import ROOT


@pytest.fixture(scope="session")
def fake_peer() -> list[str]:
    """Command of a worker with a kernel in plain torch."""
    return [sys.executable, str(ROOT / "tests/support/fake_peer.py"), str(PEERS["vllm"])]
