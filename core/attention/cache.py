"""Where K and V live: `KVCache`, a layer's named planes, and `KVLayout`, the order in which the planes hold them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from .capabilities import Mismatch
from .formats import dequantize, kv_format, quantize
from .spec import AttentionSpec

if TYPE_CHECKING:
    from .params import LayerParams

ALIGNMENT = 256
"""Elements in whose multiples planes in one piece of memory begin: kernels load from addresses they believe aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One tensor of a layer's cache, before it is allocated."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None
    """In elements; None is contiguous."""

    @property
    def elements(self) -> int:
        """Elements of storage the plane takes."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self._steps, strict=True)) if all(self.shape) else 0

    @property
    def _steps(self) -> tuple[int, ...]:
        return self.strides or torch.empty(self.shape, device="meta").stride()

    def allocate(self, device: str) -> Tensor:
        """A zeroed tensor."""
        return self.stack(1, device)[0]

    def stack(self, count: int, device: str) -> Tensor:
        """`count` zeroed tensors in one piece of memory, (count, …), a multiple of the first dimension's stride apart.

        On CPUs memory is taken as it is written: numpy asks for zero pages, torch writes them.
        """
        unit = math.lcm(ALIGNMENT, max(self._steps[0], 1))
        apart = -(-self.elements // unit) * unit
        total = count * apart
        if device == "cpu":
            pages = np.zeros(max(total * self.dtype.itemsize, 1), dtype=np.uint8)
            storage = torch.frombuffer(pages, dtype=self.dtype, count=total)
        else:
            storage = torch.zeros(total, dtype=self.dtype, device=device)
        return storage.as_strided((count, *self.shape), (apart, *self._steps))


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """One layer's cache: planes by name (``k`` and ``v``; later latents and states) in a layout."""

    layout: KVLayout
    planes: Mapping[str, Tensor]
    block_size: int

    @property
    def k(self) -> Tensor:
        return self.planes["k"]

    @property
    def v(self) -> Tensor:
        return self.planes["v"]


class KVLayout(ABC):
    """A named order of K and V in memory. Plugins add layouts by the hook `headstock_kv_layouts`.

    A layout is more than an order of axes: the packed K of ROCm's kernels has no strided (block, token, head) view. So
    a layout says which planes it needs, and how rows get in and out; a kernel that reads the layout knows the rest.
    """

    name: ClassVar[str]

    def refusals(self, spec: AttentionSpec) -> tuple[Mismatch, ...]:
        """Why it cannot hold the K and V of layers like `spec`; empty means it can."""
        return ()

    @abstractmethod
    def planes(self, spec: AttentionSpec, num_blocks: int) -> Mapping[str, Plane]:
        """The planes that hold `num_blocks` blocks of `spec.block_size` tokens, block 0 being the null block.

        The first dimension of each counts blocks, whatever its strides. Raises `InvalidInput` where `refusals` has a
        reason.
        """

    @abstractmethod
    def scatter_rows(self, plane: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Write `rows` (T, H, D), of the plane's dtype, to int64 `slots` (T,), all ≥ 0."""

    @abstractmethod
    def gather_rows(self, plane: Tensor, slots: Tensor, block_size: int) -> Tensor:
        """Rows (n, H, D) at int64 `slots` (n,), as stored."""

    def allocate(self, spec: AttentionSpec, num_blocks: int, device: str) -> KVCache:
        """A zeroed cache for one layer."""
        planes = {name: plane.allocate(device) for name, plane in self.planes(spec, num_blocks).items()}
        return KVCache(layout=self, planes=planes, block_size=spec.block_size)

    def scatter(self, cache: KVCache, layer: LayerParams, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Write key (T, Hkv, D) and value (T, Hkv, Dv) to `slots` (T,), quantised where the format is scaled.

        Slot -1 writes nothing. On a device that is done without a sync: such rows rewrite the null block with what it
        holds.
        """
        for name, fresh, scale in (("k", key, layer.k_scale), ("v", value, layer.v_scale)):
            plane = cache.planes[name]
            rows = quantize(fresh, scale, plane.dtype)
            if slots.device.type == "cpu":
                if slots.numel() and int(slots.min()) < 0:
                    keep = slots >= 0
                    self.scatter_rows(plane, rows[keep], slots[keep])
                else:
                    self.scatter_rows(plane, rows, slots)
            else:
                target = slots.clamp_min(0)
                held = self.gather_rows(plane, target, cache.block_size)
                self.scatter_rows(plane, torch.where((slots >= 0)[:, None, None], rows, held), target)

    def gather(self, cache: KVCache, layer: LayerParams, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """K (n, Hkv, D) and V (n, Hkv, Dv) at `slots` (n,), dequantised to `dtype`."""
        key = self.gather_rows(cache.k, slots, cache.block_size)
        value = self.gather_rows(cache.v, slots, cache.block_size)
        return dequantize(key, layer.k_scale, dtype), dequantize(value, layer.v_scale, dtype)


def slots_of(block_table: Tensor, length: int, block_size: int) -> Tensor:
    """int64 slots of the first `length` tokens of a row of the block table, int32 (width,), widened first."""
    blocks = block_table[: (length + block_size - 1) // block_size].long()
    slots = blocks[:, None] * block_size + torch.arange(block_size, device=blocks.device)
    return slots.flatten()[:length]


def storage_dtype(spec: AttentionSpec) -> torch.dtype:
    """Torch dtype that `spec.kv_format` is stored in."""
    return getattr(torch, kv_format(spec.kv_format).storage)
