"""Where output goes: results to stdout, everything else to stderr, JSON as one document."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.errors import InvalidInput


def note(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def show_log(verbose: bool) -> None:
    """Warnings on stderr; with `verbose` also what the engine, and nobody else, reports of itself."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("headstock").setLevel(logging.INFO if verbose else logging.WARNING)


def print_json(document: Any) -> None:
    """The one document of a command called with ``--json``."""
    unicode = (sys.stdout.encoding or "").casefold().startswith("utf")
    json.dump(document, sys.stdout, ensure_ascii=not unicode, indent=2, default=str)
    sys.stdout.write("\n")


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], *, whole: str = "") -> None:
    """Rows under headings, folded to the terminal's width but for the column `whole`. Cells are plain text, whatever
    brackets they hold."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == whole)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def check_writable(name: str, file: str | None) -> None:
    """Raise `InvalidInput` before minutes of work whose result could not be written to `file`; ``-`` is stdout."""
    if file in (None, "-"):
        return
    path = Path(file).absolute()
    try:  # asking for permission is not enough: root may write where no file can be made
        new = not path.exists()
        path.open("ab").close()
    except OSError as error:
        raise InvalidInput(name, f"{file} cannot be written: {error.strerror}") from error
    if new:
        path.unlink()


def size_in_bytes(name: str, text: str | None) -> int | None:
    """Bytes of ``512M``, ``4GiB`` or a plain number; units are powers of 1024."""
    if text is None:
        return None
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    power = "KMGT".find(number[-1:]) + 1 if number[-1:] else 0
    try:
        value = int(float(number[:-1] if power else number) * 1024**power)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise InvalidInput(name, f"{text!r} is not a size such as 512M or 4GiB")
    return value


def read_stdin() -> str:
    """All of stdin; raises `InvalidInput` where it is no text."""
    if sys.stdin is None:
        raise InvalidInput("prompt", "is -, and stdin is closed")
    try:
        text = sys.stdin.read()
        text.encode(sys.stdin.encoding or "utf-8")  # Python reads bytes that are no text as half characters
        return text
    except UnicodeEncodeError as error:
        raise InvalidInput("prompt", f"stdin is not {error.encoding} at character {error.start}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("prompt", f"stdin is not {error.encoding}: {error.reason} at byte {error.start}") from error
