"""The hooks of entry-point group ``headstock``. A plugin is a module with functions of these names and `hookimpl`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pluggy import HookimplMarker, HookspecMarker

if TYPE_CHECKING:
    from ..core.attention import AttentionSelection, Device, KVLayout
    from .placement import Placement

hookspec = HookspecMarker("headstock")
hookimpl = HookimplMarker("headstock")


@hookspec
def headstock_rank_backends(device: Device) -> Iterable[Placement]:  # pyright: ignore[reportReturnType]
    """Where backends of this package stand in the automatic choice; without it they are chosen only by name."""


@hookspec
def headstock_device_probes() -> Iterable[Callable[[], Iterable[Device]]]:  # pyright: ignore[reportReturnType]
    """Functions that return this machine's devices of a platform that Headstock does not know."""


@hookspec
def headstock_kv_layouts() -> Iterable[KVLayout]:  # pyright: ignore[reportReturnType]
    """Further layouts of the KV cache, under names of their own."""


@hookspec
def headstock_aiter_ops(device: Device) -> Mapping[str, str]:  # pyright: ignore[reportReturnType]
    """Functions in the place of AITER's on `device`: op → ``"package.module:function"``.

    One that is for every device needs no module of hooks: there is the entry-point group ``headstock.aiter_ops``.
    """


@hookspec
def headstock_selected(selection: AttentionSelection, device: Device) -> None:
    """Told of each selection of backends, once it is made."""
