"""AITER's double, where the library would be."""

from __future__ import annotations

import pytest

from support.doubles import aiter
from support.doubles.install import distribution, install

VERSION = "0.1.20.post1"


@pytest.fixture
def library(monkeypatch, tmp_path):
    """AITER, installed."""
    distribution(monkeypatch, tmp_path / "library", "amd-aiter", VERSION)
    install(monkeypatch, aiter.aiter())
