"""Layers whose backends tell a recorder when they write and attend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ..attention import AttentionBackend, BoundLayer, LayerParams
from ..trace import Recorder


class TracedBackend:
    """A backend as layers use it, with a span around each call."""

    def __init__(self, backend: AttentionBackend[Any], name: str, recorder: Recorder) -> None:
        """`name` is what the span calls it."""
        self._backend = backend
        self._name = name
        self._recorder = recorder

    def write_kv(self, layer: LayerParams, *arguments: Any) -> None:
        """As `AttentionBackend.write_kv`."""
        with self._recorder.span("write KV", {"layer": layer.name, "backend": self._name}):
            self._backend.write_kv(layer, *arguments)

    def forward(self, layer: LayerParams, query: Any, **keywords: Any) -> None:
        """As `AttentionBackend.forward`."""
        with self._recorder.span("attention", {"layer": layer.name, "backend": self._name}):
            self._backend.forward(layer, query, **keywords)


def traced_layers(
    layers: Mapping[str, BoundLayer], names: Mapping[str, str], recorder: Recorder
) -> dict[str, BoundLayer]:
    """`layers` with spans around their backends, which `names` calls by layer."""
    return {
        name: replace(layer, backend=cast("AttentionBackend[Any]", TracedBackend(layer.backend, names[name], recorder)))
        for name, layer in layers.items()
    }
