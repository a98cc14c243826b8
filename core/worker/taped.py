"""Layers whose backends tell a tape what they attend with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ..attention import AttentionBackend, AttentionBatch, BoundLayer, KVCache, LayerParams
from ..live import Tape
from ..trace import span


class TapedBackend:
    """A backend as layers use it; after it has attended, the tape hears of it."""

    def __init__(self, backend: AttentionBackend[Any], batch: AttentionBatch, group: int, tape: Tape) -> None:
        self._backend = backend
        self._batch = batch
        self._group = group
        self._tape = tape

    def write_kv(self, layer: LayerParams, *arguments: Any) -> None:
        """As `AttentionBackend.write_kv`."""
        self._backend.write_kv(layer, *arguments)

    def forward(self, layer: LayerParams, query: Any, *, kv_cache: KVCache | None, **keywords: Any) -> None:
        """As `AttentionBackend.forward`."""
        self._backend.forward(layer, query, kv_cache=kv_cache, **keywords)
        if kv_cache is not None:
            with span("record vectors"):
                self._tape.attention(layer, query, kv_cache, self._batch, self._group)


def taped_layers(
    layers: Mapping[str, BoundLayer], first: Mapping[int, str], batches: Sequence[AttentionBatch], tape: Tape
) -> dict[str, BoundLayer]:
    """`layers`, of which `first` names by group the one that tells; `batches` are those of the groups."""
    found = dict(layers)
    for group, name in first.items():
        backend = TapedBackend(layers[name].backend, batches[group], group, tape)
        found[name] = replace(layers[name], backend=cast("AttentionBackend[Any]", backend))
    return found
