"""What a backend was made from: a hash that changes with its code, also where the version does not."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

SUFFIXES = frozenset({".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".hip", ".so", ".pyd", ".jinja"})


def source_hash(cls: type) -> str:
    """Of the files next to the module of `cls`, where that is a package of its own, else of the module's file alone.

    Empty where it has no file, as in a notebook.
    """
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if module is None or not file:
        return ""
    folder = Path(file).parent
    whole = bool(getattr(module, "__package__", "")) and _is_leaf(folder)
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES) if whole else [Path(file)]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _is_leaf(folder: Path) -> bool:
    """Whether the package holds one backend's files: no packages below it."""
    return not any((child / "__init__.py").exists() for child in folder.iterdir() if child.is_dir())
