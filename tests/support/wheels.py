"""Distributions for tests: Headstock's own, built from the checkout, and hand-made ones; all without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .tree import ROOT, files


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributions:
    """Headstock as it would be published."""

    sdist: Path
    wheel: Path
    """Built from the sdist, not from the checkout."""


def offline_environment() -> dict[str, str]:
    """The environment for pip and build: no index, and none of the settings of whoever runs the tests."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command offline and return its stdout; a failure shows everything it printed."""
    __tracebackhide__ = True
    environment = offline_environment() if env is None else env
    line = [str(part) for part in command]
    done = subprocess.run(line, check=False, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_headstock(folder: Path) -> Distributions:
    """Build the sdist, and the wheel from it, in a copy: the checkout would keep a headstock.egg-info and a build/."""
    source, out = folder / "source", folder / "dist"
    for path in files():
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Distributions(sdist=sdist, wheel=wheel)


def metadata_text(name: str, version: str, requires: Iterable[str] = ()) -> str:
    """A METADATA file with the least that pip reads."""
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*head, *(f"Requires-Dist: {requirement}" for requirement in requires), ""])


def stub_wheel(folder: Path, name: str, version: str, requires: Iterable[str] = ()) -> Path:
    """A wheel that holds nothing but its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    info = {
        "METADATA": metadata_text(name, version, requires),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for entry, text in info.items():
            wheel.writestr(f"{stem}.dist-info/{entry}", text)
    return path


def pretend_installed(site: Path, name: str, version: str, requires: Iterable[str] = ()) -> None:
    """Make pip believe that a distribution is installed in `site`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(metadata_text(name, version, requires))
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text("")


def bare_environment(folder: Path) -> tuple[Path, Path]:
    """A new virtual environment without pip: its interpreter and its site-packages. Install with ``pip --python``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    return folder / "bin" / "python", site


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that holds Headstock's wheel, and sees the libraries of the one that runs the tests."""

    bin: Path
    site: Path
    elsewhere: Path
    """An empty folder, in which its commands are run."""

    def __call__(self, command: str, *arguments: str) -> str:
        """Run a command of this environment and return its stdout."""
        __tracebackhide__ = True
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return run(self.bin / command, *arguments, cwd=self.elsewhere, env=env)


def install_headstock(wheel: Path, folder: Path) -> Installed:
    """Install the wheel into a new environment below `folder`."""
    python, site = bare_environment(folder / "venv")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    # A path in a .pth file does not bring that folder's own .pth files along, so the editable install stays out.
    (site / "libraries.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return Installed(bin=python.parent, site=site, elsewhere=elsewhere)
