"""`OutputOptions`: where a result goes, the same for all commands that measure more than kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from ..entrypoints.cli.console import check_writable

OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the result goes."""

    json: Annotated[
        str | None,
        Option(help="Write one JSON document; - is stdout, in place of the table.", metavar="FILE",
               rich_help_panel=OUTPUT),
    ] = None  # fmt: skip
    markdown: Annotated[bool, Option("--markdown", help="Print the table in Markdown.", rich_help_panel=OUTPUT)] = False
    save: Annotated[bool, Option("--save", help="Keep the result; see headstock results.", rich_help_panel=OUTPUT)] = (
        False
    )

    def check(self) -> None:
        """Raise `InvalidInput` before minutes of work whose result could not be written."""
        check_writable("json", self.json)
