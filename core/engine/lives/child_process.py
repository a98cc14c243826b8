"""`ChildProcess`: one engine process as the operating system sees it: started, listened to, watched, ended."""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from ...errors import HeadstockError

EXIT_STUCK = 75
"""Exit code of an engine process that has seen its own loop stuck."""
KEPT = 8192
"""Characters of output that are kept to be told when it dies."""
PROGRAM = "import sys; sys.path[:] = {path!r}; from headstock.core.engine.lives.child import main; main(sys.argv[1:])"


class ChildProcess:
    """A fresh interpreter, never a fork. What it prints goes to our stderr.

    A thread that lives as long as it does starts it: on Linux, the kernel ends it when that thread ends, with us.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """`environ` is added to ours. Raises `HeadstockError` where no process can be started."""
        program = PROGRAM.format(path=[entry or os.getcwd() for entry in sys.path])
        self._command = [sys.executable, "-c", program, *arguments]
        self._environ = {**os.environ, **environ}
        self.output, self._write_output = os.pipe()
        """File descriptor, readable when there is something to `forward`."""
        self.ended, self._write_ended = os.pipe()
        """File descriptor, readable at the end."""
        os.set_blocking(self.output, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.last_words = ""
        """The end of what it has printed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: OSError | None = None
        self._started, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._live, name="headstock-engine-watch", daemon=True).start()
        self._started.wait()
        if self._problem is not None:
            self.release()
            raise HeadstockError(f"no engine process can be started: {self._problem}")

    def _live(self) -> None:
        with os.fdopen(self._write_ended, "wb"):
            try:
                with os.fdopen(self._write_output, "wb") as output:
                    self._process = subprocess.Popen(
                        self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                    )
            except OSError as error:
                self._problem = error
                return
            finally:
                self._started.set()
            self._process.wait()
            self._over.set()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None  # else __init__ has raised
        return self._process

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def stopped(self) -> bool:
        """Whether the system holds it, as after SIGSTOP."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def forward(self) -> bool:
        """Pass on some of what it has printed; False where there is nothing any more."""
        try:
            piece = os.read(self.output, 65536)
        except BlockingIOError:
            return False
        if text := self._decoder.decode(piece, final=not piece):
            self.last_words = (self.last_words + text)[-KEPT:]
            with suppress(OSError, ValueError):  # ours may be closed
                sys.stderr.write(text)
                sys.stderr.flush()
        return bool(piece)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within `seconds`."""
        return self._over.wait(seconds)

    def kill(self) -> None:
        """End it at once; stopped ones, too."""
        self._running.kill()
        self._over.wait()

    def fate(self) -> str:
        """How it ended, in words."""
        code = self._running.returncode
        if code == EXIT_STUCK:
            return "was stuck in a step and has ended itself"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        advice = "; the system does that where memory runs out" if name == "SIGKILL" else ""
        return f"was ended by signal {-code} ({name}{advice})"

    def release(self) -> None:
        """Close the file descriptors; after the end."""
        os.close(self.output)
        os.close(self.ended)
