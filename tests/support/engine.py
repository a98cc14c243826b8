"""Engines for tests: real ones over a fixed choice of backends, with counters to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headstock.core.attention import (
    LAYOUTS,
    AttentionBackend,
    AttentionChoice,
    AttentionSelection,
    AttentionSpec,
    Device,
)

Pick = Callable[[str], type[AttentionBackend[Any]]]


class FixedProvider:
    """An `AttentionProvider` that does as it is told, layer by layer."""

    def __init__(self, pick: type[AttentionBackend[Any]] | Pick, layout: str = "nhd") -> None:
        self._pick: Pick = (lambda _: pick) if isinstance(pick, type) else pick
        self._layout = layout

    def select(
        self, specs: Mapping[str, AttentionSpec], device: Device, block_size: int | None = None
    ) -> AttentionSelection:
        choices = {
            name: AttentionChoice(
                backend=(cls := self._pick(name)).__name__, cls=cls, distribution="test", origin="layer: test"
            )
            for name in specs
        }
        return AttentionSelection(choices=choices, block_size=block_size or 16, layout=LAYOUTS[self._layout])
