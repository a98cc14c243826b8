"""What a plugin does at import stays with the plugin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headstock.core.errors import BackendError
from headstock.plugins import Failure, Guard


class PanicException(BaseException):
    """What a panic in an extension written in Rust looks like."""


def raises(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'gone'"), "ModuleNotFoundError: No module named 'gone'"),
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit"),
        (SyntaxError("invalid syntax"), "SyntaxError: invalid syntax"),
        (PanicException("index out of\n  range"), "PanicException: index out of range"),
        (RecursionError(), "RecursionError"),
    ],
)
def test_whatever_is_raised_becomes_a_value_of_one_line(error, text):
    failure = Guard().attempt(raises(error))
    assert isinstance(failure, Failure)
    assert str(failure) == text


def test_the_users_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        Guard().attempt(raises(KeyboardInterrupt()))


def test_strict_mode_raises_what_was_raised():
    with pytest.raises(ModuleNotFoundError, match="gone"):
        Guard(strict=True).attempt(raises(ModuleNotFoundError("gone")))


def test_even_strict_mode_does_not_let_a_plugin_end_the_program():
    with pytest.raises(BackendError, match="a plugin ended in SystemExit: 0"):
        Guard(strict=True).attempt(raises(SystemExit(0)))


def test_a_refusal_is_an_error_in_strict_mode():
    with pytest.raises(BackendError, match="made for another"):
        Guard(strict=True).complain("made for another")


def test_a_warning_is_given_once(caplog):
    guard = Guard()
    for _ in range(3):
        guard.warn("the same")
    assert [r.getMessage() for r in caplog.records] == ["the same"]


NOISE = """
import ctypes, os, subprocess, sys
from headstock.plugins import Guard
print("before")
def noisy():
    print("print")
    os.write(1, b"write\\n")
    ctypes.CDLL(None).printf(b"printf\\n")
    subprocess.run(["echo", "child"])
    raise SystemExit("noise")
Guard().attempt(noisy)
print("after")
"""


def test_nothing_a_plugin_prints_reaches_stdout():
    done = subprocess.run([sys.executable, "-c", NOISE], capture_output=True, text=True, check=True)
    assert done.stdout == "before\nafter\n"
    assert sorted(done.stderr.split()) == ["child", "print", "printf", "write"]


def test_a_process_without_stdout_can_still_load_plugins():
    code = "import os; os.close(1); from headstock.plugins import Guard; raise SystemExit(Guard().attempt(lambda: 7))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
