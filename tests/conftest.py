"""Fixtures for the whole suite."""

from __future__ import annotations

import pytest

from support.wheels import Distributions, build_headstock


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Headstock's sdist and wheel, built once."""
    return build_headstock(tmp_path_factory.mktemp("distributions"))
