"""The cache of converted models, with real processes: two at once, killed ones, full disks, damaged entries."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstock.core.errors import ModelError
from headstock.core.model import resolve_model
from headstock.core.model.cache import MARKER, cache_root, cached
from headstock.core.model.progress import silent
from support.gguf import CONFIG, write_gguf
from support.model import load, tensors_of

CHILD = """
import sys
from headstock.core.errors import ModelError
from headstock.core.model import resolve_model

def progress(task, done, total):
    print("progress:", task, flush=True)
    if task.startswith("converting") and done < total:
        sys.stdin.readline()

print("ready", flush=True)
sys.stdin.readline()
try:
    print("path:", resolve_model(sys.argv[1], progress=progress).path)
except ModelError as error:
    print("refused:", error)
"""
"""Waits for a line on stdin before it begins, and for one more at every tensor that it converts."""
GO_ON = "\n" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headstock" / "models"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tensors_of(CONFIG))


@contextmanager
def child(gguf: Path, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """A process that resolves a model and tells what happens, line by line."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", CHILD, str(gguf)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str]) -> None:
    """Let it go on by one step."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def lines_until(process: subprocess.Popen[str], start: str) -> list[str]:
    """What the process says up to the first line that begins with `start`."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(start):
            return lines
    raise AssertionError(f"the process ended without saying {start!r}: {lines}")


def only_whole_entries(cache: Path) -> bool:
    return [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == [
        p.parent.name for p in cache.glob(f"*/{MARKER}")
    ]


def test_two_processes_convert_once(cache: Path, gguf: Path) -> None:
    with child(gguf) as first, child(gguf) as second:
        tell(first)
        lines_until(first, "progress: converting")
        tell(second)
        lines_until(second, "progress: waiting for another process")
        first.communicate(GO_ON)
        rest = lines_until(second, "path:")
    assert not any("converting" in line for line in rest)
    assert rest[-1] == f"path: {resolve_model(gguf).path}"
    assert only_whole_entries(cache)


def test_a_killed_conversion_leaves_nothing_that_is_taken_for_a_model(cache: Path, gguf: Path) -> None:
    with child(gguf) as process:
        tell(process)
        lines_until(process, "progress: converting")
        process.kill()
        process.wait()
    assert not list(cache.glob(f"*/{MARKER}"))
    assert list(cache.glob(".*.tmp"))
    load(resolve_model(gguf).path)
    assert only_whole_entries(cache)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes of a file fails in this process, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [10, 5_000, 20_000])  # the config, the tokenizer, the weights
def test_a_write_that_fails_is_told_and_recovered_from(size: int, cache: Path, gguf: Path) -> None:
    advice = "(.|\n)*set XDG_CACHE_HOME to a folder that can be written"
    with files_of_at_most(size), pytest.raises(ModelError, match=f"cannot write the model cache.*too large{advice}"):
        resolve_model(gguf)
    assert only_whole_entries(cache)
    load(resolve_model(gguf).path)


def test_a_full_disk_is_told_and_left_clean(tmp_path: Path, gguf: Path) -> None:
    (tmp_path / "small").mkdir()
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" || exit 77; XDG_CACHE_HOME="$0" "$@"; ls -A "$0"/headstock/models'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path / "small"))
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode in (1, 77):
        pytest.skip("no file systems can be mounted here")
    with child(gguf, prefix) as process:
        said, _ = process.communicate(GO_ON)
    *_, error = said.partition("refused: ")
    assert "No space left on device" in error
    assert "0.00 GB are free there" in error
    assert error.splitlines()[-1].endswith(".lock")  # and nothing else is left in the cache


def test_a_cache_that_cannot_be_made_is_told(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot write the model cache: Not a directory(.|\n)*set XDG_CACHE_HOME"):
        resolve_model(gguf)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written_is_told(cache: Path, gguf: Path) -> None:
    cache.mkdir(parents=True, mode=0o500)
    with pytest.raises(ModelError, match=r"cannot write the model cache: Permission denied"):
        resolve_model(gguf)


def test_a_complete_entry_is_used_as_it_is(cache: Path, gguf: Path) -> None:
    path = resolve_model(gguf).path
    before = {p: p.stat().st_mtime_ns for p in path.iterdir()}
    for lock in cache.glob("*.lock"):
        lock.unlink()
    assert resolve_model(gguf).path == path
    assert {p: p.stat().st_mtime_ns for p in path.iterdir()} == before
    assert not list(cache.glob("*.lock"))  # a reader needs no lock, so a read-only cache serves


@pytest.mark.parametrize("damage", ["truncated weights", "lost tokenizer", "cut marker", "no marker", "other layout"])
def test_a_damaged_entry_is_built_again(damage: str, cache: Path, gguf: Path) -> None:
    path = resolve_model(gguf).path
    if damage == "truncated weights":
        os.truncate(path / "model.safetensors", 100)
    elif damage == "lost tokenizer":
        (path / "tokenizer.json").unlink()
    elif damage == "cut marker":
        os.truncate(path / MARKER, 20)
    elif damage == "no marker":
        (path / MARKER).unlink()
    else:
        marker = json.loads((path / MARKER).read_text())
        (path / MARKER).write_text(json.dumps({**marker, "layout": 0}))
    assert resolve_model(gguf).path == path
    load(path)
    assert (path / "tokenizer.json").is_file()
    assert only_whole_entries(cache)


def test_a_changed_source_is_converted_again(cache: Path, gguf: Path) -> None:
    first = load(resolve_model(gguf).path).norm.weight.clone()
    write_gguf(gguf, tensors_of(CONFIG, seed=1))
    os.utime(gguf, ns=(1, 1))
    assert not first.equal(load(resolve_model(gguf).path).norm.weight)
    assert len(list(cache.glob(f"*/{MARKER}"))) == 1


def test_files_of_the_same_name_do_not_meet(cache: Path, tmp_path: Path, gguf: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_gguf(tmp_path / "other" / "tiny.gguf", tensors_of(CONFIG, seed=1))
    assert resolve_model(gguf).path != resolve_model(other).path


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ModelError("no")

    with pytest.raises(ModelError, match=r"^no$"):
        cached("key", {}, build, silent)
    assert only_whole_entries(cache)


def test_the_cache_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "headstock" / "models"
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert cache_root() == Path.home() / ".cache" / "headstock" / "models"
