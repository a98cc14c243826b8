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

from ...core.errors import BackendError
from .compiler import BuildError, Compiler, find_compiler, flags_here, source_key

PREBUILT = "HEADSTOCK_KERNELS"
"""Environment variable: a folder made by ``headstock compile --output``."""
NO_COMPILER = "no C++ compiler was found (set CXX, or install g++ or clang++)"


def library() -> Path:
    """The compiled kernels for this machine: prebuilt, cached, or compiled now.

    Raises `BuildError` where there is no compiler or it fails; a failure is remembered until sources, flags or compiler
    change, or `build` is called. Raises `BackendError` for a folder that cannot be written, or that others could have
    written to.
    """
    return _prebuilt() or _Place.below(cache_root()).ensure()


def build(root: Path | None = None) -> Path:
    """The same, below `root` where one is given, and tried again where it failed before. That is forgotten if it works
    now. Two processes build once: the second waits.
    """
    cached = _Place.below(cache_root())
    if root is not None:
        path = _Place.below(root).ensure(again=True)
        cached.failure.unlink(missing_ok=True)
        return path
    return _prebuilt() or cached.ensure(again=True)


def obstacle() -> str:
    """Why `library` would fail, as far as it can be told without running anything; ``""`` where nothing is known."""
    if not sys.platform.startswith("linux"):
        return f"its kernels are made for Linux, and this is {sys.platform}"
    try:
        if _prebuilt():
            return ""
        return _Place.below(cache_root()).obstacle()
    except (BackendError, OSError) as error:
        return str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the library of one compiler lies."""

    folder: Path
    """Named by everything it depends on but the compiler."""
    compiler: Compiler | None

    @classmethod
    def below(cls, root: Path) -> _Place:
        return cls(folder=root / source_key(flags_here()), compiler=find_compiler())

    @property
    def target(self) -> Path:
        return self.folder / f"{self._name}.so"

    @property
    def failure(self) -> Path:
        """What the compiler said when it failed."""
        return self.folder / f"{self._name}.failed"

    @property
    def _name(self) -> str:
        identity = self.compiler.identity if self.compiler else ""
        return hashlib.sha256(identity.encode()).hexdigest()[:12]

    def found(self) -> Path | None:
        """The library that is there: the compiler's own, or where there is none anybody's."""
        if self.compiler is None:
            return _any_library(self.folder)
        if not self.target.is_file():
            return None
        _check_owner(self.folder)
        return self.target

    def obstacle(self) -> str:
        """Why it cannot be built; ``""`` where it is there, or nothing is known."""
        if self.found():
            return ""
        if self.compiler is None:
            return NO_COMPILER
        if self.failure.is_file():
            return f"its kernels did not compile: {self.failure.read_text()} (headstock compile tries again)"
        there = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            return f"kernels cannot be stored in {self.folder}: {there} cannot be written"
        return ""

    def ensure(self, *, again: bool = False) -> Path:
        """The library, compiled unless it is there. With `again` also where that has failed before."""
        if path := self.found():
            return path
        if self.compiler is None:
            raise BuildError(NO_COMPILER)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(self.folder)
            with FileLock(self.folder / "lock"):
                if not self.target.is_file():
                    if again:
                        self.failure.unlink(missing_ok=True)
                    self._fill(self.compiler)
        except OSError as error:
            raise BackendError(f"kernels cannot be stored in {self.folder} ({error.strerror or error})") from error
        return self.target

    def _fill(self, compiler: Compiler) -> None:
        """Compile beside the target and rename into it."""
        if self.failure.is_file():
            raise BuildError(f"the kernels did not compile: {self.failure.read_text()}")
        _tell(f"compiling the CPU attention kernels ({compiler.command[0]}, some 20 s), once for this machine…")
        started = time.monotonic()
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        os.close(handle)
        try:
            compiler.build(Path(name), flags_here())
            os.replace(name, self.target)
        except BuildError as error:
            self.failure.write_text(str(error))
            raise BuildError(f"the kernels did not compile: {error}") from error
        finally:
            Path(name).unlink(missing_ok=True)
        _tell(f"compiled in {time.monotonic() - started:.0f} s: {self.target}")


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/headstock/kernels``, or below ``~/.cache`` where that variable is unset or not absolute."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headstock" / "kernels"


def _prebuilt() -> Path | None:
    """The library for this version and machine in the folder of `PREBUILT`; None where that is not set."""
    root = os.environ.get(PREBUILT)
    if not root:
        return None
    folder = Path(root) / source_key(flags_here())
    found = _any_library(folder)
    if found is None:
        raise BuildError(f"{PREBUILT}={root} holds no kernels for this version and machine ({folder.name})")
    return found


def _any_library(folder: Path) -> Path | None:
    """The first library in it, whichever compiler made it."""
    found = sorted(folder.glob("*.so"))
    if not found:
        return None
    _check_owner(folder)
    return found[0]


def _check_owner(folder: Path) -> None:
    """Refuse a folder that somebody else owns, root apart, or may write to: what lies in it is run."""
    about = folder.stat()
    if about.st_uid not in (os.getuid(), 0):
        raise BackendError(f"{folder} belongs to user {about.st_uid}, so kernels in it are not run")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BackendError(f"{folder} can be written by others, so kernels in it are not run (chmod go-w)")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
