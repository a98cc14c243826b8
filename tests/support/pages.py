"""Pages of the documentation: their blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from .tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block."""

    language: str
    label: str
    """What stands behind the language: a file's path, ``run``…; empty where nothing does."""
    text: str


def page(name: str) -> str:
    """The text of a page in ``docs/``."""
    return (ROOT / "docs" / name).read_text("utf-8")


def blocks(text: str, language: str = "") -> list[Block]:
    """The blocks of a page, in order; only those in `language` where one is given."""
    found = re.findall(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(language=a, label=b, text=c) for a, b, c in found if language in ("", a)]


def commands(text: str, program: str = "headstock") -> list[list[str]]:
    """The lines of a page's ``sh`` blocks that call `program`, in words, the program itself left out."""
    lines = [line for block in blocks(text, "sh") for line in re.sub(r"\\\n\s*", " ", block.text).splitlines()]
    split = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in split if words and words[0] == program]
