"""What nodes of a cluster are sent so that they run the same Headstock: a wheel's contents, with its metadata.

Not the folder of the sources: a checkout is not called like the package, and backends are found by a distribution's
entry points, which only metadata have. Dependencies are not sent; nodes have them, torch above all.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from ...errors import HeadstockError
from .handshake import HERE


@cache
def shipped_folder() -> str:
    """A folder with ``headstock/`` and its ``.dist-info``, made once a process from a wheel of this very code.

    Raises `HeadstockError` where that cannot be built.
    """
    folder = Path(tempfile.mkdtemp(prefix="headstock-wheel-"))
    source = Path(HERE)
    if (source / "pyproject.toml").is_file():
        _unpack(_build(source, folder), folder / "contents")
    else:
        _copy_installed(folder / "contents")
    return str(folder / "contents")


def _build(source: Path, folder: Path) -> Path:
    """A wheel of a checkout, from a copy without what builds leave behind."""
    copy = folder / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    done = subprocess.run([*command, str(copy)], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("headstock-*.whl"))
    if done.returncode or not wheels:
        raise HeadstockError(
            f"no wheel of {source} can be built for the nodes: {done.stderr.strip()[-500:]}\n"
            "  it takes pip and setuptools here; or install Headstock from a wheel, here and on the nodes"
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def _copy_installed(folder: Path) -> None:
    """The files of an installed distribution."""
    for file in distribution("headstock").files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), target)
