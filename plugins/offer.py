"""`Offer`: a backend that some package offers, imported when it is first needed and never twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, cast

from ..core.version import __version__
from .guard import Failure, Guard
from .record import PluginRecord

if TYPE_CHECKING:
    from ..core.attention import AttentionBackend

    AnyBackend = type[AttentionBackend[Any]]


class Offer:
    """Owner of one backend's record and class."""

    def __init__(
        self, record: PluginRecord, label: str, guard: Guard, importer: Callable[[], object] | None = None
    ) -> None:
        self.record = record
        self.label = label
        """What the backend is called: its name, or ``package:name`` where the name alone could mean another."""
        self._guard = guard
        self._importer = importer or EntryPoint(record.name, record.target, record.group).load
        self._cls: AnyBackend | None = None

    def __repr__(self) -> str:
        return f"Offer({self.label}, {self.record.package}, {self.record.status})"

    def load(self) -> AnyBackend | None:
        """The class, or None where `record` then says why not. Warns once a package and reason.

        In strict mode, raises what the package raised.
        """
        if self.record.status == "not loaded":
            loaded = self._guard.attempt(self._importer)
            if isinstance(loaded, Failure):
                self.record = replace(self.record, status="failed", reason=str(loaded))
            elif problem := self._guard.attempt(lambda: objection(loaded, self.record)):
                self.record = replace(self.record, status="refused", reason=str(problem))
            else:
                self.record = replace(self.record, status="loaded")
                self._cls = loaded  # pyright: ignore[reportAttributeAccessIssue] - objection has seen to it
        if self.record.status in ("failed", "refused"):
            self._guard.complain(self.record.complaint)
        return self._cls

    def forbids(self) -> str:
        """Why there is no class, in words; empty where there is one."""
        self.load()
        record = self.record
        if record.status in ("loaded", "disabled"):
            return record.reason
        return f"{'failed to load' if record.status == 'failed' else 'refused'}: {record.reason}"


def objection(loaded: object, record: PluginRecord) -> str:
    """Why what an entry point names is no backend that this Headstock can run; empty where it is one."""
    from ..core.attention import API_VERSION, AttentionBackend

    if not isinstance(loaded, type) or not issubclass(loaded, AttentionBackend):
        return f"{record.target} is {loaded!r}, not a subclass of headstock.AttentionBackend"
    cls = cast("type[AttentionBackend[Any]]", loaded)
    version: object = cls.api_version
    if version not in (API_VERSION, API_VERSION - 1):
        return (
            f"{record.target} is written for version {version!r} of the backend contract, and headstock {__version__} "
            f"takes {API_VERSION} and {API_VERSION - 1}; install a {record.distribution} for it"
        )
    if inspect.isabstract(cls):
        return f"{record.target} does not implement {', '.join(sorted(cls.__abstractmethods__))}"
    options: object = cls.Options
    if not is_dataclass(options) or getattr(options, "__hash__", None) is None:
        return f"{record.target} has Options that are no frozen dataclass"
    return ""
