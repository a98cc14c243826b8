"""AITER's double, where the library would be."""

from __future__ import annotations

import pytest

from support.doubles import aiter
from support.doubles.install import distribution, install
from support.plugins import forget_modules

VERSION = "0.1.20.post1"


@pytest.fixture
def library(monkeypatch, tmp_path):
    """AITER, installed."""
    distribution(monkeypatch, tmp_path / "library", "amd-aiter", VERSION)
    install(monkeypatch, aiter.aiter())


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder for other packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget_modules(folder)
