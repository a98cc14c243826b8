"""Fixtures for tests of plugins."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def warnings(caplog):
    """The warnings that were logged, as text."""
    caplog.set_level(logging.WARNING)
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("headstock")]
