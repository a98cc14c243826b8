"""Fixtures for tests of plugins."""

from __future__ import annotations

import logging

import pytest

from support.plugins import forget_modules


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, first, in which a test installs packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget_modules(folder)


@pytest.fixture
def warnings(caplog):
    """The warnings that were logged, as text."""
    caplog.set_level(logging.WARNING)
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("headstock")]
