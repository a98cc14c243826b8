"""The files of this checkout, as git sees them: tracked, or new and not ignored."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE_THE_PACKAGE = ("tests", "docs", ".ci")
"""Folders in the root that are no part of the package `headstock`."""


@cache
def files() -> tuple[str, ...]:
    """Paths of all files, relative to the root, sorted. Needs a git checkout."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(path for path in set(listing.split("\0")) if path and (ROOT / path).is_file()))


@cache
def modules() -> tuple[str, ...]:
    """Paths of the Python files that belong to the package, relative to the root."""
    return tuple(p for p in files() if p.endswith(".py") and p.split("/")[0] not in OUTSIDE_THE_PACKAGE)


def dotted(path: str) -> str:
    """The name a module's path is imported by, e.g. ``headstock.core.kv`` for ``core/kv/__init__.py``."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(["headstock", *(parts[:-1] if parts[-1] == "__init__" else parts)])
