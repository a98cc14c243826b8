"""Where output goes: results to stdout, everything else to stderr, JSON as one document."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from ...core.errors import InvalidInput


def note(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def show_log(verbose: bool) -> None:
    """Warnings on stderr; with `verbose` also what the engine reports of itself."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr
    )


def print_json(document: Any) -> None:
    """The one document of a command called with ``--json``."""
    json.dump(document, sys.stdout, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write("\n")


def size_in_bytes(name: str, text: str | None) -> int | None:
    """Bytes of ``512M``, ``4GiB`` or a plain number; units are powers of 1024."""
    if text is None:
        return None
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    power = "KMGT".find(number[-1:]) + 1 if number[-1:] else 0
    try:
        value = float(number[:-1] if power else number)
        return int(value * 1024**power)
    except (ValueError, OverflowError):
        raise InvalidInput(name, f"{text!r} is not a size such as 512M or 4GiB") from None
