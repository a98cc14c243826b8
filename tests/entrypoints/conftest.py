"""Fixtures for tests of what users call."""

from __future__ import annotations

import pytest

from support.plugins import forget_modules
from support.tiny import tiny_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    """Path of a small random model without a chat template."""
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, first, in which a test installs packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget_modules(folder)
