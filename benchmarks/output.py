"""Where a result goes: options that the commands which measure share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..core.errors import InvalidInput
from ..entrypoints.cli.console import check_writable

OUTPUT = "Output"
LONGEST_BLOCK = 2**16
"""Tokens; a longer KV block is no block, and a cache of them takes more memory than there is."""


def write_document(file: str | None, document: Mapping[str, Any]) -> bool:
    """Write `document` where ``--json`` says; whether that is stdout, which then takes nothing else."""
    from ..entrypoints.cli.console import note, print_json

    if file == "-":
        print_json(document)
    elif file is not None:
        Path(file).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        note(f"written to {file}")
    return file == "-"


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What everything that is measured can become."""

    markdown: Annotated[bool, Option("--markdown", help="Print the table in Markdown.", rich_help_panel=OUTPUT)] = False
    save: Annotated[bool, Option("--save", help="Keep the result; see headstock results.", rich_help_panel=OUTPUT)] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(ResultOptions):
    """The same, and a file for the document."""

    json: Annotated[
        str | None,
        Option(help="Write one JSON document; - is stdout, in place of the table.", metavar="FILE",
               rich_help_panel=OUTPUT),
    ] = None  # fmt: skip

    def check(self) -> None:
        """Raise `InvalidInput` before minutes of work whose result could not be written."""
        check_writable("json", self.json)
        if self.json == "-" and self.markdown:
            raise InvalidInput("markdown", "stdout takes one of --json and --markdown; give --json a file")
