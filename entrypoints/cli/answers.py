"""How `headstock chat` puts answers on stdout: as text that grows, or as a line of JSON each."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol


class Answers(Protocol):
    """Where answers go. Every turn has one end, be it an error."""

    def grow(self, text: str) -> None:
        """More of the answer."""
        ...

    def end(self, turn: dict[str, Any]) -> None:
        """All of it: `line` of stdin, `prompt`, and what became of it."""
        ...


class PlainAnswers:
    """`Answers` for people: the text as it comes, and a line's end."""

    def grow(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self, turn: dict[str, Any]) -> None:
        self.grow("\n")


class JsonAnswers:
    """`Answers` for programs: an answer may have lines of its own, so each turn is an object on one."""

    def grow(self, text: str) -> None:
        pass

    def end(self, turn: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(turn) + "\n")
        sys.stdout.flush()
