"""The three libraries' doubles."""

from __future__ import annotations

import pytest

from support.doubles import dao
from support.doubles.install import install


@pytest.fixture
def fa2(monkeypatch):
    install(monkeypatch, dao.flash_attn_2())


@pytest.fixture
def fa3(monkeypatch):
    install(monkeypatch, dao.flash_attn_3())


@pytest.fixture
def fa4(monkeypatch):
    install(monkeypatch, dao.flash_attn_4())
