"""Running other people's code: what it raises becomes a value, and what it prints does not mix with our output."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TypeVar

from ..core.errors import BackendError

T = TypeVar("T")
log = logging.getLogger("headstock.plugins")


@dataclass(frozen=True, slots=True)
class Failure:
    """What a plugin's code raised."""

    error: BaseException

    def __str__(self) -> str:
        """Type and text, on one line."""
        return f"{type(self.error).__name__}: {' '.join(str(self.error).split())}".removesuffix(": ")


class Guard:
    """Calls plugins, and warns about them: each thing once."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._said: set[str] = set()

    def attempt(self, call: Callable[[], T]) -> T | Failure:
        """The result of `call`, or what it raised.

        A plugin may raise anything, `SystemExit` and the panics of native code included. Only `KeyboardInterrupt`,
        which is the user's, passes; in strict mode everything does.
        """
        try:
            with stdout_to_stderr():
                return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = Failure(error)
            if not self.strict:
                return failure
            if isinstance(error, Exception):
                raise
            raise BackendError(f"a plugin ended in {failure}") from error  # not the end of this program, perhaps with 0

    def ask(self, call: Callable[[], object], kind: type[T]) -> T | Failure:
        """The same, where the result has to be a `kind`."""
        answer = self.attempt(call)
        if isinstance(answer, kind | Failure):
            return answer
        wrong = TypeError(f"gave {answer!r}, not {kind.__name__}")
        if self.strict:
            raise wrong
        return Failure(wrong)

    def complain(self, text: str) -> None:
        """A plugin cannot be used: a warning, or in strict mode a `BackendError`."""
        if self.strict:
            raise BackendError(text)
        self.warn(text)

    def warn(self, text: str) -> None:
        """Log `text`, unless that has been done."""
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)


@contextmanager
def stdout_to_stderr() -> Generator[None]:
    """Send to stderr what Python code, native code and child processes print to stdout."""
    _flush()
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # a daemon may have closed them
        saved = None
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            _flush()
            os.dup2(saved, 1)
            os.close(saved)


def _flush() -> None:
    """Let out what Python and C code have buffered; a stdout that is gone or broken is not the plugin's affair."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
