"""The system's C++ compiler, and how it is called."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from ...core.errors import BackendError
from ...core.version import __version__

SOURCES = Path(__file__).parent / "kernels"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
)
ISA_FLAGS = {"x86_64": ("-mavx2", "-mfma", "-mf16c"), "aarch64": ()}
"""By architecture. The kernels run on every CPU of it that `CpuBackend.capabilities` accepts, not only on this one."""
NAMES = ("c++", "g++", "clang++")
TIMEOUT = 1800
"""Seconds. It takes some 20, and many times that on a machine with much other work."""


class BuildError(BackendError):
    """The kernels could not be compiled; the text is the compiler's."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler, with the arguments that `CXX` may carry."""

    command: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Arguments, and path, size and age of the program: another version has others. Nothing is run."""
        path = os.path.realpath(shutil.which(self.command[0]) or self.command[0])
        about = os.stat(path)
        return repr((path, self.command[1:], about.st_size, about.st_mtime_ns))

    def build(self, target: Path, flags: tuple[str, ...]) -> None:
        """Compile all sources into the shared library `target`; raises `BuildError` with what the compiler said."""
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            units = sorted(SOURCES.glob("*.cpp"))
            objects = [Path(folder) / f"{unit.stem}.o" for unit in units]
            pairs = zip(units, objects, strict=True)
            _run([[*self.command, *flags, "-c", unit, "-o", to] for unit, to in pairs])
            _run([[*self.command, "-shared", "-o", target, *objects]])


def find_compiler() -> Compiler | None:
    """``$CXX``, or the first of the usual names that is there."""
    if command := shlex.split(os.environ.get("CXX", "")):
        return Compiler(tuple(command)) if shutil.which(command[0]) else None
    return next((Compiler((name,)) for name in NAMES if shutil.which(name)), None)


def flags_here() -> tuple[str, ...]:
    """All flags for this machine's architecture."""
    return (*FLAGS, *ISA_FLAGS.get(architecture(), ()))


def architecture() -> str:
    """``x86_64`` or ``aarch64``, whatever the system calls it."""
    machine = platform.machine().casefold()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def source_key(flags: tuple[str, ...]) -> str:
    """What a built library depends on, the compiler apart: our version, sources, flags, system and architecture."""
    digest = hashlib.sha256(repr((__version__, flags, platform.system(), architecture())).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def _run(commands: Sequence[Sequence[str | Path]]) -> None:
    """Run compilers side by side. Raises `BuildError` for the first that fails; none is left running."""
    with ExitStack() as stack:
        runs = [stack.enter_context(Popen(command, stderr=PIPE, stdout=DEVNULL, text=True)) for command in commands]
        stack.callback(lambda: [run.kill() for run in runs])
        try:
            said = [run.communicate(timeout=TIMEOUT)[1] for run in runs]
        except TimeoutExpired as late:
            raise BuildError(f"the compiler took more than {TIMEOUT} s") from late
    for run, text in zip(runs, said, strict=True):
        if run.returncode:
            raise BuildError(_first_error(text))


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.casefold()]
    return (errors or lines or ["the compiler failed without a word"])[0]
