"""Values as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast


def plain(value: Any) -> Any:
    """`value` in dicts, lists, text and numbers; a set becomes a sorted list, anything unknown its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in cast("frozenset[object]", value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("tuple[object, ...]", value)]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
