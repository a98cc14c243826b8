"""What a forward pass needs to know about attention, by layer name: backends can differ from layer to layer."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .backend import AttentionBackend
from .cache import KVCache
from .params import LayerParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundLayer:
    """A layer with the backend instance and the cache it was given."""

    params: LayerParams
    backend: AttentionBackend[Any]
    kv_cache: KVCache | None
    group: int
    """Index of its attention group: layers of one group share a plan."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardContext:
    """One step, as the layers see it."""

    layers: Mapping[str, BoundLayer]
    plans: tuple[Any, ...]
    """One plan an attention group."""
    slot_mappings: tuple[Tensor, ...]
    """int64 (T,) an attention group: where K and V are written."""


_CURRENT: ContextVar[ForwardContext] = ContextVar("headstock_forward_context")


@contextmanager
def forward_context(context: ForwardContext) -> Generator[None]:
    """Make `context` the current one of this thread or task."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_context() -> ForwardContext:
    """The context of the running forward pass; raises `LookupError` outside of one."""
    return _CURRENT.get()
