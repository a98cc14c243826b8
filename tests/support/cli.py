"""The command line called in this process, with its own stdin, stdout, stderr and environment."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from headstock.entrypoints.cli import main
from headstock.entrypoints.compose import installed_plugins

COLOURS = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE")
"""Variables that make rich or typer believe in a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str
    writes: tuple[str, ...] = field(repr=False)
    """The pieces in which stdout was written."""

    @property
    def json(self) -> Any:
        """Stdout as the one JSON document that it has to be."""
        return json.loads(self.out)


class _Recorded(io.TextIOWrapper):
    """A stdout that remembers how it was written."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.pieces: list[str] = []

    def write(self, text: str, /) -> int:
        self.pieces.append(text)
        return super().write(text)


def run_cli(
    *arguments: str, stdin: bytes = b"", environ: dict[str, str] | None = None, encoding: str = "utf-8"
) -> Result:
    """Call ``headstock`` with these arguments. `encoding` is that of the terminal. What it raises reaches the test."""
    out, err = _Recorded(encoding), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    code: object = 0
    with ExitStack() as stack:
        stack.enter_context(_environment(environ or {}))
        stack.enter_context(_fresh_logging())
        stack.enter_context(mock.patch.object(sys, "argv", ["headstock", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8")))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert code is None or isinstance(code, int), f"the exit code is {code!r}"
    return Result(code=code or 0, out=_text(out), err=_text(err), writes=tuple(out.pieces))


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(stream.encoding, "strict")


@contextmanager
def _environment(environ: dict[str, str]) -> Iterator[None]:
    """The variables of whoever runs the tests, less those that would show; plugins are found anew."""
    kept = {k: v for k, v in os.environ.items() if k not in COLOURS and not k.startswith("HEADSTOCK_")}
    with mock.patch.dict(os.environ, {**kept, "COLUMNS": "80", **environ}, clear=True):
        installed_plugins.cache_clear()
        yield
        installed_plugins.cache_clear()


@contextmanager
def _fresh_logging() -> Iterator[None]:
    """A root logger as a new process has it: `logging.basicConfig` does nothing where somebody was before it."""
    root, ours = logging.getLogger(), logging.getLogger("headstock")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
