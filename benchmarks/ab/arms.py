"""`Arm`: what takes part in a comparison, and how people write it: ``NAME[{options}][+op=pkg:fn][@ENV]``."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import InvalidInput

_NAME = re.compile(r"[^{@+]+")
_OP = re.compile(r"\+(\w+)=([\w.]+:[\w.]+)")
OPS = "aiter_ops"
"""Option of the backends over AITER: op → the function in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison."""

    label: str
    """As the user wrote it."""
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As ``--attention-backend-config`` has them for this backend."""
    python: str = sys.executable
    """The interpreter of the environment it runs in."""

    @property
    def config(self) -> str | None:
        """For ``--attention-backend-config``."""
        return json.dumps({self.backend: dict(self.options)}) if self.options else None

    @property
    def here(self) -> bool:
        """Whether it runs in this environment."""
        return self.python == sys.executable


def read_arms(words: Sequence[str], *, elsewhere: bool = False) -> tuple[Arm, ...]:
    """Two arms or more, the first of which the others are held against; `elsewhere` as for `read_arm`.

    Raises `InvalidInput` naming the arm that is wrong, and where two are written alike.
    """
    if len(words) < 2:
        raise InvalidInput("arms", "name two or more; the first is what the others are held against")
    twice = [word for index, word in enumerate(words) if word in words[:index]]
    if twice:
        raise InvalidInput(
            "arms", f"{twice[0]!r} is named twice; write the second {twice[0]}{{}} to compare a backend with itself"
        )
    return tuple(read_arm(word, elsewhere=elsewhere) for word in words)


def read_arm(word: str, *, elsewhere: bool = False) -> Arm:
    """Raises `InvalidInput` with the part that is wrong. Environments `elsewhere` are on other machines."""
    name = _NAME.match(word)
    if name is None or not name[0].strip():
        raise InvalidInput("arms", f"{word!r} does not start with the name of a backend")
    options, rest = _options(word, word[name.end() :])
    ops, rest = _ops(word, rest)
    if ops:
        options = {**options, OPS: {**options.get(OPS, {}), **ops}}
    python = sys.executable
    if rest:
        if not rest.startswith("@"):
            raise InvalidInput(
                "arms", f"{word!r}: {rest!r} is neither options in braces, +op=package:function nor @ENVIRONMENT"
            )
        python = rest[1:] if elsewhere else _python(word, rest[1:])
    return Arm(label=word, backend=name[0].strip(), options=options, python=python)


def _options(word: str, text: str) -> tuple[Mapping[str, Any], str]:
    """The options at the start of `text`, and what comes after them."""
    if not text.startswith("{"):
        return {}, text
    try:
        options, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("arms", f"{word!r}: the options are not JSON: {error}") from error
    return options, text[end:]


def _ops(word: str, text: str) -> tuple[dict[str, str], str]:
    """The functions at the start of `text` that are to take the place of ops, and what comes after them."""
    found: dict[str, str] = {}
    while match := _OP.match(text):
        if match[1] in found:
            raise InvalidInput("arms", f"{word!r} puts two functions in the place of {match[1]}")
        found[match[1]] = match[2]
        text = text[match.end() :]
    return found, text


def _python(word: str, environment: str) -> str:
    """The interpreter of a virtual environment's folder, or the interpreter itself."""
    path = Path(os.path.expanduser(environment))
    for candidate in (path, path / "bin" / "python", path / "Scripts" / "python.exe"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate.absolute())  # not resolved: a virtual environment's Python is a link
    raise InvalidInput("arms", f"{word!r}: {environment or 'nothing'} is neither a virtual environment nor a Python")
