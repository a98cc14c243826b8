"""Headstock tells nobody anything: with the model cached, the demo's command needs no network and asks for none."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from headstock.core.model import resolve_model
from support import automatic
from support.tree import ROOT

NAMESPACES = (("unshare", "--net"), ("unshare", "--net", "--map-root-user"))
"""Ways into a network namespace of one's own: as root, and as a user where the kernel lets users have one."""

WATCH = """
import os, sys

def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        with open(os.environ["NETWORK_NOTES"], "a") as notes:
            print(event, arguments, file=notes)

sys.addaudithook(note)
"""
"""Runs at the start of every interpreter below the command, and writes down each attempt to reach anybody."""


@pytest.fixture(scope="module")
def without_network() -> tuple[str, ...]:
    """The words before a command that take the network away from it."""
    for words in NAMESPACES:
        listing = subprocess.run([*words, "cat", "/proc/net/dev"], check=False, capture_output=True, text=True)
        if listing.returncode == 0:
            assert [line.split(":")[0].strip() for line in listing.stdout.splitlines()[2:]] == ["lo"]
            return words
    pytest.skip("NOT TESTED: this machine lets us make no network namespace (unshare --net), so nothing is proven here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Runs Python without a network, and notes what it tried to reach."""

    words: tuple[str, ...]
    folder: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": str(self.folder), "NETWORK_NOTES": str(self.folder / "notes")}
        command = [*self.words, sys.executable, *arguments]
        return subprocess.run(command, check=False, cwd=self.folder, env=env, capture_output=True, text=True)

    @property
    def attempts(self) -> str:
        notes = self.folder / "notes"
        return notes.read_text() if notes.exists() else ""


@pytest.fixture
def watched(without_network, tmp_path: Path) -> Watched:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    return Watched(words=without_network, folder=tmp_path)


def demo() -> list[str]:
    """The words that `make demo` runs once everything is installed, after the program's name."""
    make = ("make", "--dry-run", "--old-file", ".venv/.installed", "demo", "VENV=.venv")
    # Not the settings of a make that runs the tests: with them it talks of the folder too.
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    (line,) = subprocess.run(make, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    program, *words = shlex.split(line)
    assert program == ".venv/bin/headstock"
    return words


def test_the_demo_runs_without_a_network_and_tries_none(watched):
    resolve_model("smollm2")
    done = watched.python("-m", "headstock", *demo())
    assert done.returncode == 0, done.stderr
    assert "sky" in done.stdout
    assert re.search(rf"attention backend: {automatic.BACKEND} \(headstock .*\).* why: ", done.stderr)
    assert watched.attempts == ""


def test_the_watch_sees_an_attempt(watched):
    attempt = "import socket\ntry: socket.create_connection(('localhost', 9))\nexcept OSError: pass"
    assert watched.python("-c", attempt).returncode == 0
    assert "socket.connect" in watched.attempts
