"""Servers over the small model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headstock.core.model import ModelFolder
from support.http_server import Served, served
from support.tiny import tiny_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: ModelFolder) -> Iterator[Served]:
    """One for all tests of a module, with nothing left in it after each."""
    with served(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").at_rest()
