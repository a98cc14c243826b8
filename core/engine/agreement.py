"""The attention backends that were chosen where an engine was asked for, and the check that the engine chose the same.

The choice is made once. An engine in another process or on another machine has other packages, plugins or environment
variables at worst; it must not compute with something else than its front end reports (vllm-project/vllm#14099).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..attention import AttentionProvider, AttentionSelection, AttentionSpec, Device
from ..errors import BackendError

SHOWN = 4
"""Differences that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRecord:
    """A selection as plain text, which can be sent and compared."""

    layers: Mapping[str, str]
    """Layer → backend, package with version, options, dtype, and format of the cache."""
    block_size: str
    layout: str

    @classmethod
    def of(cls, selection: AttentionSelection, specs: Mapping[str, AttentionSpec]) -> AttentionRecord:
        """What was selected for `specs`."""
        layers: dict[str, str] = {}
        for name, choice in selection.choices.items():
            spec = specs[name]
            options = "" if choice.options is None else f" with {choice.options!r}"
            layers[name] = f"{choice.backend} ({choice.distribution}){options}, {spec.dtype}, KV in {spec.kv_format}"
        return cls(layers=layers, block_size=str(selection.block_size), layout=selection.layout.name)

    def differences(self, other: AttentionRecord) -> list[str]:
        """A line for each thing that is not the same here and there."""
        ours, theirs = self._things(), other._things()
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        return [f"{name}: {ours.get(name, 'nothing')} there, {theirs.get(name, 'nothing')} here" for name in names]

    def _things(self) -> dict[str, str]:
        return {"block size": self.block_size, "layout": self.layout, **self.layers}


class AgreedProvider:
    """An `AttentionProvider` whose answer has to be the one that was recorded elsewhere."""

    def __init__(self, provider: AttentionProvider, record: AttentionRecord, rank: int) -> None:
        self._provider = provider
        self._record = record
        self._rank = rank

    def select(
        self, specs: Mapping[str, AttentionSpec], device: Device, block_size: int | None = None
    ) -> AttentionSelection:
        """As `provider` does; raises `BackendError` with both sides where they differ."""
        selection = self._provider.select(specs, device, block_size)
        different = self._record.differences(AttentionRecord.of(selection, specs))
        if different:
            more = f"\n  and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
            raise BackendError(
                f"engine {self._rank} chooses other attention backends (here) than were chosen where it was asked for "
                "(there):\n  " + "\n  ".join(different[:SHOWN]) + more + "\n"
                "  give both the same packages, plugins and HEADSTOCK_* variables"
            )
        return selection
