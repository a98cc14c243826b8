"""The double of flashinfer."""

from __future__ import annotations

import pytest

from support.doubles.flashinfer import flashinfer
from support.doubles.install import install


@pytest.fixture(autouse=True)
def _double(monkeypatch, request):
    if "real" not in request.keywords:
        install(monkeypatch, flashinfer())
