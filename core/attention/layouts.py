"""The two layouts everybody knows. Others come by plugin."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .cache import KVLayout, Plane, storage_dtype
from .spec import AttentionSpec


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


def _indexable(x: Tensor) -> Tensor:
    """The same memory, in a dtype that torch indexes: it does not know how to copy 8-bit floats by index."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


LAYOUTS: dict[str, KVLayout] = {layout.name: layout for layout in (TokenMajor(), HeadMajor())}
"""Layouts by name, before plugins add theirs."""
