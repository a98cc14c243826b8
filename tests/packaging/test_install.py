"""The built wheel, installed into an environment of its own, outside the checkout."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

import headstock
from support.wheels import bare_environment, run


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that holds the wheel, and sees the libraries of the one that runs the tests."""

    bin: Path
    site: Path
    elsewhere: Path
    """An empty folder to run in."""

    def __call__(self, *command: str) -> str:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return run(self.bin / command[0], *command[1:], cwd=self.elsewhere, env=env)


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    python, site = bare_environment(folder / "venv")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", distributions.wheel)
    # Plain paths in a .pth file do not bring that folder's own .pth files along, so the editable install stays out.
    (site / "libraries.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    (folder / "elsewhere").mkdir()
    return Installed(bin=python.parent, site=site, elsewhere=folder / "elsewhere")


def test_the_package_comes_from_the_wheel(installed):
    where = installed("python", "-c", "import headstock; print(headstock.__file__)").strip()
    assert Path(where) == installed.site / "headstock" / "__init__.py"


@pytest.mark.parametrize("command", [("headstock",), ("python", "-m", "headstock")], ids=" ".join)
def test_the_command_tells_its_version(installed, command):
    assert headstock.__version__ in installed(*command, "--version")


def test_the_built_in_backends_are_found_through_their_entry_points(installed):
    listing = installed("headstock", "backends", "--json")
    assert json.loads(listing)
    for name in ("reference", "sdpa"):
        assert name in listing


def test_the_types_are_shipped(installed):
    assert (installed.site / "headstock" / "py.typed").is_file()
