"""Lines that somebody types, with editing and history where there is a terminal, or that come through a pipe."""

from __future__ import annotations

import sys
from contextlib import suppress

from ...core.errors import InvalidInput


class Lines:
    """Stdin, line by line."""

    def __init__(self, prompt: str) -> None:
        """`prompt` is shown at a terminal only. Raises `InvalidInput` where stdin is closed."""
        if sys.stdin is None:
            raise InvalidInput("stdin", "is closed")
        self.interactive = sys.stdin.isatty()
        self.number = 0
        """Of the line that was read last, from 1."""
        self._prompt = prompt
        if self.interactive:
            with suppress(ImportError):  # a Python built without it
                import readline  # noqa: F401 - from now on `input` knows the arrow keys, and what was typed before

    def read(self) -> str | None:
        """The next line; None at the end. Raises `InvalidInput` where it is no text."""
        self.number += 1
        try:
            return self._typed() if self.interactive else self._piped()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise InvalidInput("stdin", f"is not {error.encoding}: {error.reason} at byte {error.start}") from error

    def _typed(self) -> str | None:
        if sys.stdout.isatty():
            return input(self._prompt)
        sys.stderr.write(self._prompt)  # `input` would write it between the answers
        sys.stderr.flush()
        return self._piped()

    def _piped(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
