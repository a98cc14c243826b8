"""The two layouts everybody knows, and the two of AMD's paged kernels. Others come by plugin."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InvalidInput
from .cache import KVLayout, Plane, storage_dtype
from .capabilities import Mismatch
from .spec import AttentionSpec

PACK_BYTES = 16
"""What a thread of AMD's kernels loads at once."""


class TokenMajor(KVLayout):
    """NHD: planes (num_blocks, block_size, H, D). A token's heads lie together; consecutive blocks are one run."""

    name = "nhd"

    def planes(self, spec: AttentionSpec, num_blocks: int) -> Mapping[str, Plane]:
        dtype, head = storage_dtype(spec), (num_blocks, spec.block_size, spec.num_kv_heads)
        return {
            "k": Plane(shape=(*head, spec.head_size), dtype=dtype),
            "v": Plane(shape=(*head, spec.head_size_v), dtype=dtype),
        }

    def scatter_rows(self, plane: Tensor, rows: Tensor, slots: Tensor) -> None:
        _indexable(plane).view(-1, *plane.shape[2:]).index_copy_(0, slots, _indexable(rows))

    def gather_rows(self, plane: Tensor, slots: Tensor, block_size: int) -> Tensor:
        return _indexable(plane).view(-1, *plane.shape[2:]).index_select(0, slots).view(plane.dtype)


class HeadMajor(KVLayout):
    """HND: planes (num_blocks, H, block_size, D). A head's tokens of one block lie together."""

    name = "hnd"

    def planes(self, spec: AttentionSpec, num_blocks: int) -> Mapping[str, Plane]:
        dtype = storage_dtype(spec)
        k = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size)
        v = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size_v)
        return {"k": Plane(shape=k, dtype=dtype), "v": Plane(shape=v, dtype=dtype)}

    def scatter_rows(self, plane: Tensor, rows: Tensor, slots: Tensor) -> None:
        size = plane.shape[2]
        _indexable(plane)[slots // size, :, slots % size] = _indexable(rows)

    def gather_rows(self, plane: Tensor, slots: Tensor, block_size: int) -> Tensor:
        return _indexable(plane)[slots // block_size, :, slots % block_size].view(plane.dtype)


class XPacked(KVLayout):
    """K (num_blocks, H, D/x, block_size, x) and V (num_blocks, H, Dv, block_size), where x channels of K are 16 bytes.

    A channel of V has its tokens of a block together. vLLM's first paged kernel reads K and V so, and so does AMD's
    `paged_attention_rocm`.
    """

    name = "x_packed"

    def refusals(self, spec: AttentionSpec) -> tuple[Mismatch, ...]:
        return _multiple(self.name, "head_size", spec.head_size, packed(spec))

    def planes(self, spec: AttentionSpec, num_blocks: int) -> Mapping[str, Plane]:
        _require(self, spec)
        v = (num_blocks, spec.num_kv_heads, spec.head_size_v, spec.block_size)
        return {"k": _packed_k(spec, num_blocks), "v": Plane(shape=v, dtype=storage_dtype(spec))}

    def scatter_rows(self, plane: Tensor, rows: Tensor, slots: Tensor) -> None:
        size, rows = plane.shape[3], _indexable(rows)
        if plane.ndim == 5:
            rows = rows.reshape(*rows.shape[:2], plane.shape[2], plane.shape[4])
        _indexable(plane)[slots // size, :, :, slots % size] = rows

    def gather_rows(self, plane: Tensor, slots: Tensor, block_size: int) -> Tensor:
        return _indexable(plane)[slots // block_size, :, :, slots % block_size].flatten(2).view(plane.dtype)


class Shuffle(XPacked):
    """K as in `XPacked`; V in memory (num_blocks, H, block_size/x, Dv, x): x tokens of a channel are 16 bytes.

    AITER's assembly kernels read V so. Its plane shows the channels first, (num_blocks, H, Dv, block_size/x, x), as V
    of `XPacked` does: the order in memory is that of ``plane.transpose(2, 3)``.
    """

    name = "shuffle"

    def refusals(self, spec: AttentionSpec) -> tuple[Mismatch, ...]:
        return super().refusals(spec) + _multiple(self.name, "block_size", spec.block_size, packed(spec))

    def planes(self, spec: AttentionSpec, num_blocks: int) -> Mapping[str, Plane]:
        _require(self, spec)
        x, size, channels = packed(spec), spec.block_size, spec.head_size_v
        v = Plane(
            shape=(num_blocks, spec.num_kv_heads, channels, size // x, x),
            dtype=storage_dtype(spec),
            strides=(spec.num_kv_heads * size * channels, size * channels, x, channels * x, 1),
        )
        return {"k": _packed_k(spec, num_blocks), "v": v}

    def scatter_rows(self, plane: Tensor, rows: Tensor, slots: Tensor) -> None:
        if plane.shape[2] != rows.shape[2]:  # K, which has its channels in groups there
            super().scatter_rows(plane, rows, slots)
            return
        groups, x = plane.shape[3:]
        _indexable(plane)[slots // (groups * x), :, :, slots % (groups * x) // x, slots % x] = _indexable(rows)

    def gather_rows(self, plane: Tensor, slots: Tensor, block_size: int) -> Tensor:
        if plane.shape[3] == block_size:  # K: V has its tokens in groups there
            return super().gather_rows(plane, slots, block_size)
        x = plane.shape[4]
        rows = _indexable(plane)[slots // block_size, :, :, slots % block_size // x, slots % x]
        return rows.view(plane.dtype)


def packed(spec: AttentionSpec) -> int:
    """x: stored numbers that are 16 bytes."""
    return PACK_BYTES // storage_dtype(spec).itemsize


def _packed_k(spec: AttentionSpec, num_blocks: int) -> Plane:
    x = packed(spec)
    shape = (num_blocks, spec.num_kv_heads, spec.head_size // x, spec.block_size, x)
    return Plane(shape=shape, dtype=storage_dtype(spec))


def _multiple(layout: str, field: str, asked: int, of: int) -> tuple[Mismatch, ...]:
    return () if asked % of == 0 else (Mismatch(field=field, asked=asked, offered=f"multiples of {of} in {layout}"),)


def _require(layout: KVLayout, spec: AttentionSpec) -> None:
    for refused in layout.refusals(spec):
        raise InvalidInput(refused.field, f"the KV layout holds {refused.offered}, not {refused.asked}")


def _indexable(x: Tensor) -> Tensor:
    """The same memory, in a dtype that torch indexes: it does not know how to copy 8-bit floats by index."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


LAYOUTS: dict[str, KVLayout] = {layout.name: layout for layout in (TokenMajor(), HeadMajor(), XPacked(), Shuffle())}
"""Layouts by name, before plugins add theirs."""
