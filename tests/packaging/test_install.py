"""The built wheel, installed into an environment of its own, outside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headstock


def test_the_package_comes_from_the_wheel(installed):
    where = installed("python", "-c", "import headstock; print(headstock.__file__)").strip()
    assert Path(where) == installed.site / "headstock" / "__init__.py"


@pytest.mark.parametrize("command", [("headstock",), ("python", "-m", "headstock")], ids=" ".join)
def test_the_command_tells_its_version(installed, command):
    assert headstock.__version__ in installed(*command, "--version")


def test_the_built_in_backends_are_found_through_their_entry_points(installed):
    listing = installed("headstock", "backends", "--json")
    assert json.loads(listing)
    for name in ("reference", "sdpa", "cpu"):
        assert name in listing


def test_the_types_are_shipped(installed):
    assert (installed.site / "headstock" / "py.typed").is_file()
