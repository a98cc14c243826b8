"""The system's C++ compiler, and how it is called."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...core.errors import HeadstockError
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
TIMEOUT = 300


class BuildError(HeadstockError):
    """The kernels could not be compiled; the text is the compiler's."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler, with the arguments that `CXX` may carry."""

    command: tuple[str, ...]

    @cached_property
    def identity(self) -> str:
        """Path and version, as far as the compiler tells."""
        command = [*self.command, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        return f"{shutil.which(self.command[0])} {done.stdout.splitlines()[0] if done.stdout else ''}"

    def build(self, target: Path, flags: tuple[str, ...]) -> None:
        """Compile all sources into the shared library `target`; raises `BuildError` with what the compiler said."""
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            units = sorted(SOURCES.glob("*.cpp"))
            objects = [Path(folder) / f"{unit.stem}.o" for unit in units]
            runs = [
                subprocess.Popen([*self.command, *flags, "-c", unit, "-o", to], stderr=subprocess.PIPE, text=True)
                for unit, to in zip(units, objects, strict=True)
            ]
            said = [run.communicate(timeout=TIMEOUT)[1] for run in runs]
            for run, text in zip(runs, said, strict=True):
                if run.returncode:
                    raise BuildError(_first_error(text))
            link = [*self.command, "-shared", "-o", target, *objects]
            done = subprocess.run(link, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            if done.returncode:
                raise BuildError(_first_error(done.stderr))


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


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.casefold()]
    return (errors or lines or ["the compiler failed without a word"])[0]
