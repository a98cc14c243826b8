"""Options in groups: a command takes a dataclass, and its fields become options of the command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with every parameter whose type is a dataclass replaced by the dataclass's fields, in their place."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[name] = kind
            parameters.extend(_options(kind))
        else:
            parameters.append(_keyword(name, kind, parameter.default))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        made = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**values, **made)

    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    del call.__wrapped__  # whoever follows it would find the signature with the dataclasses
    return call


def _options(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    defaults = {f.name: inspect.Parameter.empty if f.default is MISSING else f.default for f in fields(kind)}
    return [_keyword(name, hints[name], default) for name, default in defaults.items()]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
