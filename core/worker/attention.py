"""Attention groups: layers of equal spec and backend share an instance and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..attention import (
    Attention,
    AttentionBackend,
    AttentionBatch,
    AttentionChoice,
    AttentionSelection,
    AttentionSpec,
    BoundLayer,
    Device,
    ForwardContext,
    KVCache,
    LayerParams,
    Limits,
    Workspace,
)
from ..kv import KVGroupSpec
from ..live import Tape, TapedGroup
from ..trace import recorder
from .taped import taped_layers
from .traced import traced_layers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionGroup:
    """Layers that are computed alike."""

    backend: AttentionBackend[Any]
    kv_group: int
    """Index of the KV group whose block table and slots they use."""


class AttentionGroups:
    """Owner of the backend instances, each bound to its layers and their caches."""

    def __init__(self, selection: AttentionSelection, device: Device, limits: Limits) -> None:
        self._selection = selection
        self._device = device
        self._limits = limits
        self.workspace = Workspace(device.torch_device)
        self.groups: list[AttentionGroup] = []
        self._layers: dict[str, BoundLayer] = {}

    def bind(
        self, layers: Mapping[str, Attention], caches: Mapping[str, KVCache], kv_groups: Sequence[KVGroupSpec]
    ) -> None:
        """Give each layer its backend instance, its cache and the block table of its KV group.

        Layers without a cache attend to the step's own rows.
        """
        tables = {name: index for index, group in enumerate(kv_groups) for name in group.layer_names}
        found: dict[tuple[object, ...], int] = {}
        for name, layer in layers.items():
            choice, table = self._selection.choices[name], tables.get(name, 0)
            key = (table, choice.cls, choice.options, layer.spec)
            if key not in found:
                found[key] = len(self.groups)
                self.groups.append(AttentionGroup(backend=self._instance(choice, layer.spec), kv_group=table))
            group = found[key]
            params = LayerParams(name=name, spec=layer.spec, sinks=layer.sinks, alibi_slopes=layer.alibi_slopes)
            self.groups[group].backend.bind(params)
            self._layers[name] = BoundLayer(
                params=params, backend=self.groups[group].backend, kv_cache=caches.get(name), group=group
            )

    def _instance(self, choice: AttentionChoice, spec: AttentionSpec) -> AttentionBackend[Any]:
        return choice.cls(spec, self._device, self._limits, self.workspace, choice.options)

    @property
    def decode_query_len(self) -> int:
        """Most query tokens of a decode row that every backend takes as one."""
        return min(g.backend.capabilities(self._device).decode_query_len for g in self.groups)

    @property
    def padded_seq_len(self) -> int:
        """Length that rows of padding must have: 1 where any backend needs that, which does no harm to the others."""
        return max(g.backend.capabilities(self._device).padded_seq_len for g in self.groups)

    def plan(self, batches: Sequence[AttentionBatch]) -> ForwardContext:
        """Plan a step, for each group from the batch of its KV group: host work."""
        return ForwardContext(
            layers=self._layers,
            plans=tuple([group.backend.plan(batches[group.kv_group]) for group in self.groups]),
            slot_mappings=tuple([_slots(batches[group.kv_group]) for group in self.groups]),
        )

    def prepare(self, context: ForwardContext) -> None:
        """The device work of a step that comes before its first layer."""
        for group, plan in zip(self.groups, context.plans, strict=True):
            group.backend.prepare(plan)

    @cached_property
    def taped_groups(self) -> tuple[TapedGroup, ...]:
        """The groups as a recording describes them."""
        layers: dict[int, list[str]] = {}
        for name, layer in self._layers.items():
            layers.setdefault(layer.group, []).append(name)
        return tuple(
            TapedGroup(
                kv_group=group.kv_group,
                spec=self._layers[layers[index][0]].params.spec,
                backend=self._selection.choices[layers[index][0]].backend,
                layers=tuple(layers[index]),
            )
            for index, group in enumerate(self.groups)
        )

    def taped(self, context: ForwardContext, batches: Sequence[AttentionBatch], tape: Tape) -> ForwardContext:
        """`context` with the first layer of each group telling `tape` what it attends with."""
        first: dict[int, str] = {}
        for name, layer in context.layers.items():
            first.setdefault(layer.group, name)
        tables = [batches[group.kv_group] for group in self.groups]
        return replace(context, layers=taped_layers(context.layers, first, tables, tape))

    def traced(self, context: ForwardContext) -> ForwardContext:
        """`context` with spans around what layers do, where somebody records; else as it is."""
        trace = recorder()
        if trace is None:
            return context
        names = {name: self._selection.choices[name].backend for name in self._layers}
        return replace(context, layers=traced_layers(context.layers, names, trace))


def _slots(batch: AttentionBatch) -> torch.Tensor:
    if batch.slot_mapping is not None:
        return batch.slot_mapping
    if batch.block_table is not None:
        raise ValueError("a batch over a cache needs a slot mapping")
    return torch.empty(0, dtype=torch.int64)
