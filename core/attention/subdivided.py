"""A backend under a cache whose blocks are larger than those its kernel reads: each is so many of the kernel's.

A block of a token-major plane holds its tokens one after the other, so a kernel may take it for several smaller ones:
slots stay as they are, and block b becomes blocks b·n to b·n + n - 1. vLLM divides blocks the same way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from .backend import AttentionBackend
from .batch import AttentionBatch, GraphKey
from .cache import KVCache
from .capabilities import Capabilities, Mismatch, Sizes
from .device import Device
from .params import LayerParams, Limits, Workspace
from .requirements import Availability
from .spec import AttentionSpec

LAYOUT = "nhd"
"""The layout whose blocks can be divided: where heads come before tokens, a smaller block is no run of memory."""


class Subdivided(AttentionBackend[Any]):
    """Made by `subdivided`. Offers what the backend offers, in `LAYOUT` and in multiples of its block."""

    whole_cls: ClassVar[type[AttentionBackend[Any]]]
    kernel_block: ClassVar[int]
    """Tokens a block of the kernel."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        offered = cls.whole_cls.capabilities(device)
        layouts = tuple(name for name in offered.layouts if name == LAYOUT)
        return replace(offered, layouts=layouts, block_sizes=Sizes(multiple_of=cls.kernel_block))

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return cls.whole_cls.refusals(replace(spec, block_size=cls.kernel_block), device)

    @classmethod
    def availability(cls) -> Availability:
        return cls.whole_cls.availability()

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._pieces = spec.block_size // self.kernel_block
        self._spec = replace(spec, block_size=self.kernel_block)
        width = limits.max_blocks_per_req * self._pieces
        inner = replace(limits, max_blocks_per_req=width)
        self._inner = self.whole_cls(self._spec, device, inner, workspace, self.options)
        self._order = torch.arange(self._pieces, dtype=torch.int32, device=device.torch_device)
        self._eager = [self._table(limits.max_num_reqs, width) for _ in range(limits.plans_in_flight + 1)]
        self._captured: dict[GraphKey, Tensor] = {}
        self._layers: dict[LayerParams, LayerParams] = {}

    def _table(self, rows: int, width: int) -> Tensor:
        return torch.zeros(rows, width, dtype=torch.int32, device=self.device.torch_device)

    def bind(self, layer: LayerParams) -> None:
        self._inner.bind(self._layer(layer))

    def plan(self, batch: AttentionBatch) -> Any:
        table = batch.block_table
        if table is None:
            return self._inner.plan(batch)
        rows, width = len(table), table.shape[1] * self._pieces
        if batch.graph is None:
            self._eager.append(self._eager.pop(0))
            buffer = self._eager[0]
        else:
            key = replace(batch.graph, capturing=False)
            if key not in self._captured:
                self._captured[key] = self._table(rows, width)
            buffer = self._captured[key]
        divided = buffer[:rows, :width]
        pieces = cast("Tensor", divided.unflatten(1, (-1, self._pieces)))  # pyright: ignore[reportUnknownMemberType]
        torch.add(table[..., None] * self._pieces, self._order, out=pieces)
        return self._inner.plan(replace(batch, block_table=divided))

    def prepare(self, plan: Any) -> None:
        self._inner.prepare(plan)

    def write_kv(self, layer: LayerParams, key: Tensor, value: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        self._inner.write_kv(self._layer(layer), key, value, self._divided(kv_cache), slot_mapping)

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: Any,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        self._inner.forward(
            self._layer(layer),
            query,
            key=key,
            value=value,
            kv_cache=None if kv_cache is None else self._divided(kv_cache),
            plan=plan,
            out=out,
            lse_out=lse_out,
        )

    def _layer(self, layer: LayerParams) -> LayerParams:
        if layer not in self._layers:
            self._layers[layer] = replace(layer, spec=self._spec)
        return self._layers[layer]

    def _divided(self, cache: KVCache) -> KVCache:
        """The same memory in the kernel's blocks."""
        planes = {name: plane.view(-1, self.kernel_block, *plane.shape[2:]) for name, plane in cache.planes.items()}
        return KVCache(layout=cache.layout, planes=planes, block_size=self.kernel_block)


def kernel_block(block_size: int, sizes: Sizes) -> int | None:
    """The largest of a kernel's block `sizes` that divides `block_size`; None where there is none."""
    return next((n for n in range(block_size, 0, -1) if block_size % n == 0 and n in sizes), None)


def subdivided(cls: type[AttentionBackend[Any]], block: int) -> type[AttentionBackend[Any]]:
    """`cls` over blocks in multiples of `block` tokens, which it reads."""
    made = Subdivided.derive(
        f"{cls.__name__}InBlocksOf{block}",
        whole_cls=cls,
        kernel_block=block,
        requires=cls.requires,
        Options=cls.Options,
    )
    return cast("type[AttentionBackend[Any]]", made)
