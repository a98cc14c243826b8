"""The folder of converted models: each entry is built once, appears whole or not at all, and heals itself.

An entry is built in a temporary sibling, flushed to disk, and renamed into place under a file lock. Its marker file,
written last, lists every file with its size, so an entry that was cut short or lost a file is noticed by a few `stat`
calls and built again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import ModelError
from .progress import Progress

MARKER = "headstock.json"
LAYOUT_VERSION = 1
"""Part of every marker; raising it makes all entries be built again."""


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/headstock/models``, or below ``~/.cache`` where that variable is unset or not absolute."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headstock" / "models"


def cached(key: str, source: Mapping[str, str | int], build: Callable[[Path], None], progress: Progress) -> Path:
    """The folder of entry `key`, built by `build(folder)` unless an entry made from the same `source` is complete.

    `source` identifies what the entry is made from (sums, sizes, times); it must survive a round trip through JSON.
    Two processes build once: the second waits. Raises `ModelError` where the cache cannot be written.
    """
    folder = cache_root() / key
    if _complete(folder, source):
        return folder
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            if not _complete(folder, source):
                _rebuild(folder, source, build)
    return folder


def _complete(folder: Path, source: Mapping[str, str | int]) -> bool:
    try:
        marker = json.loads((folder / MARKER).read_bytes())
        return (
            marker["layout"] == LAYOUT_VERSION
            and marker["source"] == dict(source)
            and all((folder / name).stat().st_size == size for name, size in marker["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # absent, cut short or damaged: all mean "build it"


def _rebuild(folder: Path, source: Mapping[str, str | int], build: Callable[[Path], None]) -> None:
    prefix = f".{folder.name}."
    for stale in folder.parent.glob(f"{prefix}*.tmp"):  # of processes that were killed: we hold the lock
        shutil.rmtree(stale)
    work = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=folder.parent))
    try:
        fresh = work / "new"
        fresh.mkdir()
        build(fresh)
        files = {path.name: path.stat().st_size for path in sorted(fresh.iterdir())}
        marker = {"layout": LAYOUT_VERSION, "source": dict(source), "files": files}
        (fresh / MARKER).write_text(json.dumps(marker, indent=1))
        for path in (*fresh.iterdir(), fresh):
            _flush(path)
        if folder.exists():
            folder.rename(work / "old")
        fresh.rename(folder)
        _flush(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process to prepare {folder.name}", 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the system's refusals into a `ModelError` that says where and what to set."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{folder.parent}: cannot write the model cache: {error.strerror or error}.\n"
            f"  {_free(folder.parent)}; smollm2, for one, takes 0.8 GB while it is prepared and 0.54 GB afterwards\n"
            "  free some space, or set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _free(folder: Path) -> str:
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 1e9:.2f} GB are free there"
