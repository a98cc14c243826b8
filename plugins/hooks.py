"""`Hooks`: the plugins' hook modules, called one by one, so that one that fails takes nobody with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, TypeVar

from packaging.utils import canonicalize_name
from pluggy import PluginManager

from . import hookspecs
from .guard import Failure, Guard
from .placement import Placement
from .record import AITER_OPS, HOOKS, PluginRecord

if TYPE_CHECKING:
    from ..core.attention import AttentionSelection, Device, KVLayout

T = TypeVar("T")


class Hooks:
    """Owner of the hook modules and of how they fared. They are imported at the first call.

    A module counts as a whole: where one of its hooks fails, or gives something of the wrong type, all of them are
    dropped with a warning, and nothing of what it gave before is kept.
    """

    def __init__(self, records: Iterable[PluginRecord], guard: Guard | None = None) -> None:
        self._guard = guard or Guard()
        self._records = [r for r in records if r.group == HOOKS]
        self._live: list[tuple[PluginRecord, PluginManager]] | None = None

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """How each module fared."""
        self._managers()
        return tuple(self._records)

    def placements(self, device: Device) -> tuple[tuple[PluginRecord, Placement], ...]:
        """Who ranks which of its backends, on `device`."""
        return tuple(self._collect("headstock_rank_backends", Placement, device=device))

    def devices(self) -> tuple[Device, ...]:
        """What the plugins' probes find on this machine."""
        from ..core.attention import Device

        def probe(manager: PluginManager) -> list[object]:
            return [device for found in manager.hook.headstock_device_probes() for call in found for device in call()]

        return tuple(device for _, device in self._each(probe, Device))

    def layouts(self) -> dict[str, KVLayout]:
        """All layouts by name, ours and the plugins'. A plugin whose layout has a name that is taken fails."""
        from ..core.attention import LAYOUTS, KVLayout

        found = dict(LAYOUTS)
        for record, layout in self._collect("headstock_kv_layouts", KVLayout):
            if found.setdefault(layout.name, layout) is not layout:
                self._fail(record, f"its KV layout {layout.name!r} has the name of another")
                return self.layouts()
        return found

    def ops(self, device: Device) -> tuple[PluginRecord, ...]:
        """Functions in the place of AITER's on `device`, as if they were entry points of the modules' packages."""

        def call(manager: PluginManager) -> list[object]:
            return [
                PluginRecord(group=AITER_OPS, name=op, target=target, distribution="", version="")
                for given in manager.hook.headstock_aiter_ops(device=device)
                for op, target in given.items()
            ]

        return tuple(
            replace(found, distribution=record.distribution, version=record.version)
            for record, found in self._each(call, PluginRecord)
        )

    def selected(self, selection: AttentionSelection, device: Device) -> None:
        """Tell the plugins what was selected."""

        def tell(manager: PluginManager) -> list[object]:
            manager.hook.headstock_selected(selection=selection, device=device)
            return []

        list(self._each(tell, object))

    def _collect(self, hook: str, kind: type[T], **arguments: Any) -> list[tuple[PluginRecord, T]]:
        """What the plugins' implementations of `hook` give, each an iterable of `kind`."""

        def call(manager: PluginManager) -> list[object]:
            return [item for found in getattr(manager.hook, hook)(**arguments) for item in found]

        return self._each(call, kind)

    def _each(self, call: Callable[[PluginManager], list[object]], kind: type[T]) -> list[tuple[PluginRecord, T]]:
        results: list[tuple[PluginRecord, T]] = []
        for record, manager in list(self._managers()):
            given = self._guard.attempt(lambda m=manager: call(m))
            if isinstance(given, Failure):
                self._fail(record, str(given))
                continue
            wrong = [item for item in given if not isinstance(item, kind)]
            if wrong:
                self._fail(record, f"gave {wrong[0]!r}, not a {kind.__name__}")
                continue
            results += [(record, item) for item in given if isinstance(item, kind)]
        return results

    def _managers(self) -> list[tuple[PluginRecord, PluginManager]]:
        if self._live is None:
            self._live = []
            for record in tuple(self._records):
                if record.status == "not loaded":
                    self._load(record)
                elif record.status != "disabled":
                    self._guard.complain(record.complaint)
        return self._live

    def _load(self, record: PluginRecord) -> None:
        manager = self._guard.attempt(lambda: _manager(record))
        if isinstance(manager, Failure):
            self._fail(record, str(manager))
        else:
            self._replace(record, replace(record, status="loaded"))
            self._live = [*(self._live or []), (replace(record, status="loaded"), manager)]

    def _fail(self, record: PluginRecord, reason: str) -> None:
        self._live = [(r, m) for r, m in self._live or [] if r != record]
        failed = replace(record, status="failed", reason=reason)
        self._replace(record, failed)
        self._guard.complain(failed.complaint)

    def _replace(self, old: PluginRecord, new: PluginRecord) -> None:
        self._records[self._records.index(old)] = new


def _manager(record: PluginRecord) -> PluginManager:
    """A pluggy manager for this one module. Raises what the import raises, and for hooks that do not exist."""
    manager = PluginManager("headstock")
    manager.add_hookspecs(hookspecs)
    module = EntryPoint(record.name, record.target, record.group).load()
    manager.register(module, name=f"{canonicalize_name(record.distribution)}:{record.name}")
    manager.check_pending()
    return manager
