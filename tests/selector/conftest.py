"""Fixtures for tests of the selector."""

from __future__ import annotations

import logging

import pytest

from headstock.selector import ranking
from support.plugins import TWO


@pytest.fixture(autouse=True)
def _two_ranked(monkeypatch):
    """On every platform the order is sdpa, reference, whatever else is built in by now."""
    for platform in ranking.RANKING:
        monkeypatch.setitem(ranking.RANKING, platform, TWO)


@pytest.fixture
def warnings(caplog):
    """The warnings that were logged, as text."""
    caplog.set_level(logging.WARNING)
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("headstock")]
