"""`Replacement`: a function in the place of a kernel library's op, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..core.attention import AttentionBackend, Device
from ..core.errors import InvalidInput
from ..plugins import PluginRecord, Plugins

OPTION = "aiter_ops"
"""Option of the backends that call such ops; what the user asks of all of them has the same name."""
FLAG = "flag (--aiter-op)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A function in the place of one op."""

    op: str
    target: str
    """``"package.module:function"``."""
    origin: str
    """Who says so: the flag, an option of the backend, or a package."""
    record: PluginRecord | None = None
    """Of the package; None where the user said so."""


def takes_ops(cls: type[AttentionBackend[Any]]) -> bool:
    """Whether a backend has the option."""
    return any(field.name == OPTION for field in fields(cls.Options))


def replacements(plugins: Plugins, device: Device, asked: Mapping[str, str]) -> dict[str, Replacement]:
    """By op: what the user asked of all backends, and what packages put in the place of other ops on `device`.

    Raises `InvalidInput` where `asked` names no op, or no function. A package that does is left out with a warning.
    """
    for op, target in asked.items():
        if problem := _objection(plugins, op, target):
            raise InvalidInput(OPTION, f"{problem}; --aiter-op takes OP=package.module:function")
    found = {op: Replacement(op=op, target=target, origin=FLAG) for op, target in asked.items()}
    for op, record in plugins.ops.targets(device, decided=asked).items():
        if problem := _objection(plugins, op, record.target):
            plugins.ops.fail(record, problem)
        elif op not in found:
            found[op] = Replacement(op=op, target=record.target, origin=f"package {record.package}", record=record)
    return found


def _objection(plugins: Plugins, op: str, target: str) -> str:
    """Why no built-in backend takes `target` in the place of `op`; empty where one does, or none calls ops."""
    for offer in plugins.backends.offers:
        cls = offer.load() if offer.record.builtin else None
        if cls is not None and takes_ops(cls):
            try:
                cls.parse_options({OPTION: {op: target}})
            except InvalidInput as error:
                return error.problem
            break
    return ""
