"""Where compiled kernels lie: built once a machine, never taken from a folder that others can write to."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ...core.errors import HeadstockError
from .compiler import BuildError, Compiler, find_compiler, flags_here, source_key

PREBUILT = "HEADSTOCK_KERNELS"
"""Environment variable: a folder made by ``headstock compile --output``."""


def library() -> Path:
    """The compiled kernels for this machine: prebuilt, cached, or compiled now.

    Raises `BuildError` where there is no compiler or it fails; a failure is remembered until sources, flags or compiler
    change. Raises `HeadstockError` for a folder that cannot be written, or that others could have written to.
    """
    return _prebuilt(Path(folder)) if (folder := os.environ.get(PREBUILT)) else build(cache_root())


def obstacle() -> str:
    """Why `library` would fail, as far as it can be told without compiling; ``""`` where nothing is known."""
    try:
        if folder := os.environ.get(PREBUILT):
            _prebuilt(Path(folder))
        elif not (place := _Place.below(cache_root())).target.is_file() and place.failure.is_file():
            return f"the kernels did not compile here: {place.failure.read_text()}"
    except (HeadstockError, OSError) as error:
        return str(error)
    return ""


def build(root: Path) -> Path:
    """The library below `root`, compiled unless it is there. Two processes build once: the second waits."""
    place = _Place.below(root)
    try:
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(place.folder)
        with FileLock(place.folder / "lock"):
            if not place.target.is_file():
                place.fill()
    except OSError as error:
        raise HeadstockError(f"kernels cannot be stored in {place.folder} ({error.strerror or error})") from error
    return place.target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the library of one compiler lies."""

    folder: Path
    """Named by everything it depends on but the compiler."""
    target: Path
    failure: Path
    """What the compiler said when it failed."""
    compiler: Compiler

    @classmethod
    def below(cls, root: Path) -> _Place:
        """Raises `BuildError` where there is no compiler."""
        compiler = find_compiler()
        if compiler is None:
            raise BuildError("no C++ compiler was found (set CXX, or install g++ or clang++)")
        folder = root / source_key(flags_here())
        name = hashlib.sha256(compiler.identity.encode()).hexdigest()[:12]
        return cls(folder=folder, target=folder / f"{name}.so", failure=folder / f"{name}.failed", compiler=compiler)

    def fill(self) -> None:
        """Compile beside the target and rename into it."""
        if self.failure.is_file():
            raise BuildError(self.failure.read_text())
        _tell("compiling the CPU attention kernels, once for this machine…")
        started = time.monotonic()
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        os.close(handle)
        try:
            self.compiler.build(Path(name), flags_here())
            os.replace(name, self.target)
        except BuildError as error:
            self.failure.write_text(str(error))
            raise
        finally:
            Path(name).unlink(missing_ok=True)
        _tell(f"compiled in {time.monotonic() - started:.0f} s: {self.target}")


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/headstock/kernels``, or below ``~/.cache`` where that variable is unset or not absolute."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headstock" / "kernels"


def _prebuilt(root: Path) -> Path:
    """The library for this version and machine below `root`, whichever compiler made it."""
    folder = root / source_key(flags_here())
    found = sorted(folder.glob("*.so"))
    if not found:
        raise BuildError(f"{PREBUILT}={root} holds no kernels for this version and machine ({folder.name})")
    _check_owner(folder)
    return found[0]


def _check_owner(folder: Path) -> None:
    """Refuse a folder that somebody else owns, root apart, or may write to: what lies in it is run."""
    about = folder.stat()
    if about.st_uid not in (os.getuid(), 0):
        raise HeadstockError(f"{folder} belongs to user {about.st_uid}, so kernels in it are not run")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise HeadstockError(f"{folder} can be written by others, so kernels in it are not run (chmod go-w)")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
