"""Programs at a terminal of their own, to be typed at and read from."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

LAUNCH = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Opening a terminal as the leader of a session makes it the one whose Ctrl-C arrives as an interrupt."""


class Terminal:
    """A process whose stdin, stdout and stderr are one terminal. A context manager, so that none stays behind."""

    def __init__(self, *arguments: str, environ: Mapping[str, str]) -> None:
        """Run Python with `arguments`."""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **environ},
        )
        os.close(slave)
        self._unread = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        """Send `keys`; a line ends with a carriage return, as at a keyboard."""
        os.write(self._master, keys.encode())

    def expect(self, pattern: str, seconds: float = 90) -> str:
        """Read until `pattern` is there; what came up to its end. Fails with all that came instead."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self._unread)):
            if not self._more(end):
                raise AssertionError(f"{pattern!r} did not come; what came: {self._unread!r}")
        text, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return text

    def press_until(self, key: str, pattern: str) -> str:
        """Press `key` until `pattern` comes. Python misses an interrupt that comes just before it waits for a key."""
        for _ in range(9):
            self.type(key)
            try:
                return self.expect(pattern, 5)
            except AssertionError:
                continue
        return self.expect(pattern)

    def rest(self, seconds: float = 90) -> str:
        """What comes until the program ends."""
        end = time.monotonic() + seconds
        while self._more(end):
            pass
        return self._unread

    def _more(self, end: float) -> bool:
        """Take in what is there, waiting for it; False at the end of the program or of the time."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        try:
            piece = os.read(self._master, 65536) if ready else b""
        except OSError:  # what Linux says when the other side is closed
            piece = b""
        self._unread += piece.decode(errors="replace")
        return bool(piece)


def lines(text: str) -> Sequence[str]:
    """The lines of a terminal's text, without line ends of either kind."""
    return text.replace("\r", "").split("\n")
