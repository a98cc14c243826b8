"""Where the sockets of engine processes lie: short paths, in a folder that only the user may enter."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from ...errors import HeadstockError

LONGEST = 100
"""Bytes of a path. The address of a Unix socket holds 107 on Linux and 103 on macOS."""
NAME = 32
"""Bytes that are kept for a socket's own name."""


def socket_folder() -> Path:
    """The folder, made where it is missing. Raises `HeadstockError` where there is none that is safe.

    The first of ``XDG_RUNTIME_DIR``, the folder for temporary files and ``/tmp`` whose path is short enough.
    """
    problems: list[str] = []
    for base in _bases():
        folder = base / f"headstock-{os.getuid()}"
        if len(os.fsencode(folder)) + NAME > LONGEST:
            problems.append(f"{folder} is too long for a socket")
            continue
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            problems.append(str(error))
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            problems.append(f"{folder} is not a folder of yours alone (mode 0700)")
            continue
        _sweep(folder)
        return folder
    raise HeadstockError(f"no place for sockets: {'; '.join(problems)}. Set XDG_RUNTIME_DIR to a short, private folder")


def _bases() -> Iterator[Path]:
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime)
    yield Path(tempfile.gettempdir())
    yield Path("/tmp")


def socket_pair() -> tuple[str, str]:
    """Two paths that nobody uses, with this process's id in them."""
    name = hashlib.sha256(uuid.uuid4().bytes).hexdigest()[:12]
    folder = socket_folder()
    return str(folder / f"{os.getpid()}-{name}.c"), str(folder / f"{os.getpid()}-{name}.e")


def _sweep(folder: Path) -> None:
    """Remove what was left by processes that were killed while an engine of theirs started."""
    for path in folder.iterdir():
        owner = path.name.partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            path.unlink(missing_ok=True)
