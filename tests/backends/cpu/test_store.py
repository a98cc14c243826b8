"""Compiled kernels: built once however many ask, remembered where they cannot be, and never run from unsafe folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headstock.backends.cpu import compiler, store
from headstock.backends.cpu.compiler import BuildError, find_compiler, source_key
from headstock.core.errors import HeadstockError

FAKE = """#!/bin/sh
# version {version}
echo call >> "{log}"
{fails}
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a compiler that is a script; returns a function that does, and reads how often it was called."""
    log = tmp_path / "calls"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(store.PREBUILT, raising=False)

    def install(version: str = "1.0", fails: str = "") -> Path:
        path = tmp_path / "fake-c++"
        path.write_text(FAKE.format(version=version, log=log, fails=fails))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    install.calls = lambda: len(log.read_text().splitlines()) if log.exists() else 0  # type: ignore[attr-defined]
    return install


def test_kernels_are_compiled_once(fake):
    fake()
    first = store.library()
    calls = fake.calls()
    assert store.library() == first
    assert fake.calls() == calls > 0
    assert first.read_text() == "built\n"
    assert not list(first.parent.glob("*.part"))


def test_another_compiler_and_other_flags_make_another_library(fake):
    fake()
    first = store.library()
    fake(version="2.0")
    assert store.library() != first
    assert source_key(("-O3",)) != source_key(("-O2",))


def test_two_processes_compile_once(fake):
    fake(fails="sleep 0.5")
    script = "from headstock.backends.cpu import store; print(store.library())"
    runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {run.communicate(timeout=60)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(paths) == 1
    units = 2
    assert fake.calls() == units + 1  # and the link, once


BROKEN = 'echo "attend.cpp:7: error: no such instruction" >&2; exit 1'


def test_a_failure_is_told_with_the_compilers_words_and_remembered(fake):
    fake(fails=BROKEN)
    assert store.obstacle() == ""
    assert fake.calls() == 0
    with pytest.raises(BuildError, match="no such instruction"):
        store.library()
    calls = fake.calls()
    assert "no such instruction" in store.obstacle()
    with pytest.raises(BuildError, match="no such instruction"):
        store.library()
    assert fake.calls() == calls


@pytest.mark.parametrize("elsewhere", [False, True])
def test_building_by_hand_tries_again_and_forgets_the_failure(fake, tmp_path, elsewhere):
    about = fake(fails=BROKEN).stat()
    with pytest.raises(BuildError, match="no such instruction"):
        store.library()
    repaired = fake(fails="true" + " " * (len(BROKEN) - 4))  # whatever was wrong, it was not the compiler
    os.utime(repaired, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert "no such instruction" in store.obstacle()
    store.build(tmp_path / "image" if elsewhere else None)
    assert store.obstacle() == ""
    assert store.library().is_file()


def test_a_compiler_that_does_not_end_is_given_up(fake, monkeypatch):
    monkeypatch.setattr(compiler, "TIMEOUT", 0.2)
    fake(fails="exec sleep 300")
    with pytest.raises(BuildError, match=r"took more than 0.2 s"):
        store.library()


def test_without_a_compiler_there_is_a_reason(fake, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert find_compiler() is None
    assert "no C++ compiler was found" in store.obstacle()
    with pytest.raises(BuildError, match="no C\\+\\+ compiler was found"):
        store.library()


def test_what_is_cached_needs_neither_a_compiler_nor_a_writable_folder(fake, monkeypatch):
    fake()
    built = store.library()
    (built.parent / "lock").unlink(missing_ok=True)
    (built.parent / "lock").mkdir()  # nobody can lock it now, as in a folder that is read-only
    assert (store.obstacle(), store.library()) == ("", built)
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert (store.obstacle(), store.library()) == ("", built)


def test_a_folder_that_others_can_write_to_is_refused(fake):
    fake()
    folder = store.library().parent
    folder.chmod(0o777)
    with pytest.raises(HeadstockError, match="can be written by others"):
        store.library()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_refused(fake, monkeypatch):
    fake()
    folder = store.library().parent
    os.chown(folder, 12345, -1)
    with pytest.raises(HeadstockError, match="belongs to user 12345"):
        store.library()


def test_a_cache_that_cannot_be_written_is_refused_with_its_path(fake, tmp_path, monkeypatch):
    fake()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "file cannot be written" in store.obstacle()
    with pytest.raises(HeadstockError, match=r"cannot be stored in .*file"):
        store.library()


def test_a_prebuilt_folder_needs_no_compiler(fake, tmp_path, monkeypatch):
    fake()
    built = store.build(tmp_path / "image")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setenv(store.PREBUILT, str(tmp_path / "image"))
    assert store.obstacle() == ""
    assert store.library() == built


def test_a_prebuilt_folder_for_something_else_is_named(fake, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(store.PREBUILT, str(tmp_path / "empty"))
    assert "holds no kernels for this version" in store.obstacle()
    with pytest.raises(BuildError, match="holds no kernels"):
        store.library()
