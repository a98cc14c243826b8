"""Fixtures for the whole suite."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis
import pytest

# Before torch is imported: threads that spin while they wait crawl beside a busy process.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Before triton is: where no card is, its kernels are tested in its interpreter.
if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# What the developer has tuned or kept is no part of the tests; the models' cache, elsewhere, is.
os.environ["XDG_DATA_HOME"] = os.path.join(tempfile.gettempdir(), f"headstock-tests-{os.getpid()}", "data")

from support.wheels import Distributions, Installed, build_headstock, install_headstock

# Time limits per example fail on a busy machine without telling anything about the code.
hypothesis.settings.register_profile("headstock", deadline=None)
hypothesis.settings.load_profile("headstock")


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Headstock's sdist and wheel, built once."""
    return build_headstock(tmp_path_factory.mktemp("distributions"))


@pytest.fixture(scope="session")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment that holds the wheel, outside the checkout: for end-to-end tests."""
    return install_headstock(distributions.wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, first, in which a test installs packages."""
    from support.plugins import forget_modules  # imports torch, and this file is read before any test is chosen

    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget_modules(folder)
