"""Putting a double where the library would be: in `sys.modules`, and among the installed distributions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def modules(name: str, **contents: Any) -> dict[str, ModuleType]:
    """The module `name` with these contents, and the packages that it lies in."""
    found: dict[str, ModuleType] = {}
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        found[path] = ModuleType(path)
        if end > 1:
            setattr(found[".".join(parts[: end - 1])], parts[end - 1], found[path])
    vars(found[name]).update(contents)
    return found


def install(monkeypatch: pytest.MonkeyPatch, double: Mapping[str, ModuleType]) -> None:
    """Import statements find the double's modules until the test is over."""
    for name, module in double.items():
        monkeypatch.setitem(sys.modules, name, module)


def distribution(monkeypatch: pytest.MonkeyPatch, site: Path, name: str, version: str) -> None:
    """Let `importlib.metadata` find the distribution `name` in this version, in the folder `site`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    monkeypatch.syspath_prepend(str(site))
