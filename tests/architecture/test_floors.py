"""Each folder imports only what stands below it, lazily or not."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from support.imports import Import, all_imports, imports_of
from support.tree import modules

CORE = (
    "core",
    "core/kv",
    "core/scheduler",
    "core/attention",
    "core/sampling",
    "core/model",
    "core/live",
    "core/text",
    "core/worker",
    "core/engine",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What one folder may import besides itself and the standard library."""

    rooms: tuple[str, ...] = ()
    """Folders of the package; ``core`` is the values that stand directly in it, ``headstock`` the root."""
    libraries: tuple[str, ...] | None = None
    """Third-party modules; None is any that pyproject.toml declares (`tests/packaging` holds that)."""


FLOORS = {
    "core": Floor(libraries=()),
    "core/kv": Floor(rooms=("core",), libraries=("numpy",)),
    "core/scheduler": Floor(rooms=("core", "core/kv"), libraries=()),
    "core/attention": Floor(rooms=("core",), libraries=("torch", "numpy", "packaging")),
    "core/sampling": Floor(rooms=("core",), libraries=("torch", "numpy")),
    "core/model": Floor(rooms=("core", "core/attention")),
    "core/text": Floor(rooms=("core",), libraries=("tokenizers", "transformers", "jinja2")),
    "core/live": Floor(rooms=("core", "core/attention"), libraries=("torch", "numpy", "safetensors")),
    "core/worker": Floor(rooms=CORE[:7], libraries=("torch", "numpy", "psutil")),
    "core/engine": Floor(rooms=CORE),
    "plugins": Floor(rooms=("core", "core/attention"), libraries=("torch", "pluggy", "packaging")),
    "backends": Floor(rooms=("core", "core/attention")),
    "selector": Floor(rooms=("core", "core/attention", "plugins"), libraries=("torch", "packaging")),
    "entrypoints": Floor(rooms=("headstock", *CORE, "plugins", "selector")),
    "benchmarks": Floor(rooms=(*CORE, "plugins", "selector", "entrypoints")),
    "headstock": Floor(rooms=(*CORE, "entrypoints"), libraries=()),
}


def room_of(target: str) -> str:
    """The folder that holds a dotted name of the package; a module right in ``core/`` belongs to ``core``."""
    parts = target.split(".")[1:]
    folder = "/".join(parts[:2] if parts[:1] == ["core"] else parts[:1])
    if folder in FOLDERS:
        return folder
    return "core" if parts[:1] == ["core"] else "headstock"


def folder_of(path: str) -> str:
    parts = path.split("/")[:-1]
    return "/".join(parts[:2] if parts[:1] == ["core"] else parts[:1]) or "headstock"


FOLDERS = {folder_of(path) for path in modules()} | set(FLOORS)


def breach(found: Import) -> str | None:
    """What is wrong with an import, or None."""
    home = folder_of(found.path)
    floor = FLOORS[home]
    top = found.target.split(".")[0]
    if top == "headstock":
        if not found.relative:
            return f"{found.where} imports {found.target} absolutely; inside the package imports are relative"
        room = room_of(found.target)
        if room != home and room not in floor.rooms:
            return f"{found.where}: {home} may not import {room} ({found.target})"
    elif top not in sys.stdlib_module_names and floor.libraries is not None and top not in floor.libraries:
        return f"{found.where}: {home} may not import the library {top}"
    return None


def test_every_folder_with_code_has_a_floor():
    assert {folder_of(path) for path in modules()} <= set(FLOORS)


def test_no_import_leaves_its_floor():
    assert [problem for found in all_imports() if (problem := breach(found))] == []


def test_the_floors_themselves_keep_the_two_great_rules():
    for folder, floor in FLOORS.items():
        assert not {"backends", "benchmarks"} & set(floor.rooms), folder
        if folder.startswith("core"):
            assert all(room.startswith("core") for room in floor.rooms), folder


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/worker/runner.py", "def load():\n    from ...backends.sdpa import SdpaBackend"),
        ("core/kv/pool.py", "import torch.nn"),
        ("core/kv/pool.py", "if TYPE_CHECKING:\n    from ..scheduler import Request"),
        ("core/scheduler/__init__.py", "import numpy as np"),
        ("core/attention/layer.py", "from ... import selector"),
        ("core/engine/core.py", "from ...entrypoints import llm"),
        ("plugins/registry.py", "from importlib import import_module\nimport_module('..backends.sdpa', __package__)"),
        ("selector/rank.py", "import importlib\nimportlib.import_module('headstock.backends.sdpa')"),
        ("entrypoints/llm.py", "from ..backends import reference"),
        ("entrypoints/llm.py", "from headstock import SamplingParams"),
        ("core/params.py", "from .kv import BlockPool"),
        ("backends/sdpa.py", "from ..plugins import hookimpl"),
    ],
)
def test_a_wrong_import_is_seen(path, source):
    assert [problem for found in imports_of(path, source) if (problem := breach(found))]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/kv/pool.py", "import numpy\nfrom ..errors import CapacityError\nfrom .block import Block"),
        (
            "core/scheduler/scheduler.py",
            "import heapq\nfrom ..kv import KVCacheManager\nfrom ..params import SamplingParams",
        ),
        ("entrypoints/llm.py", "from ..selector import Selector\nfrom ..core.engine.core import EngineCore"),
        ("backends/sdpa.py", "import torch\nfrom ..core.attention import AttentionBackend\nfrom ._shared import fold"),
        ("__main__.py", "from .entrypoints.cli import main"),
    ],
)
def test_a_right_import_passes(path, source):
    assert [problem for found in imports_of(path, source) if (problem := breach(found))] == []
