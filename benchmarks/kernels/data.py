"""Numbers that all contenders of a head count and dtype share, and a paged cache filled with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    KVCache,
    KVLayout,
    LayerParams,
    Limits,
    count_rows,
)
from .shapes import Shape

SEED = 20240607
STEP = 251
"""Rows of the pool between the starts of two sequences: prime, so that no two of a batch are alike in any block."""


class Pool:
    """Random keys, values and queries. Sequence r of a shape is the pool from row 251·r on, round and round.

    So a cache of gigabytes comes from a few megabytes, which a peer in another process can map.
    """

    def __init__(self, heads: tuple[int, int, int], dtype: str, tokens: int, queries: int) -> None:
        num_heads, num_kv_heads, size = heads
        generator = torch.Generator().manual_seed(SEED)

        def numbers(rows: int, count: int) -> Tensor:
            return torch.randn(rows, count, size, generator=generator).to(getattr(torch, dtype))

        self.keys = numbers(tokens, num_kv_heads)
        """(tokens, Hkv, D)."""
        self.values = numbers(tokens, num_kv_heads)
        self.queries = numbers(queries, num_heads)
        """(queries, Hq, D); a shape's query tokens are the first ones."""

    @classmethod
    def of(cls, heads: tuple[int, int, int], dtype: str, shapes: list[Shape]) -> Pool:
        """Large enough for each of `shapes`."""
        return cls(heads, dtype, max(s.length for s in shapes), max(s.tokens for s in shapes))

    @classmethod
    def read(cls, folder: Path, heads: tuple[int, int, int], dtype: str, tokens: int, queries: int) -> Pool:
        """What another process wrote into `folder`, mapped and not copied."""
        num_heads, num_kv_heads, size = heads

        def numbers(name: str, rows: int, count: int) -> Tensor:
            path, kind = str(folder / name), getattr(torch, dtype)
            return torch.from_file(path, shared=True, size=rows * count * size, dtype=kind).view(rows, count, size)

        pool = cls.__new__(cls)
        pool.keys = numbers("keys", tokens, num_kv_heads)
        pool.values = numbers("values", tokens, num_kv_heads)
        pool.queries = numbers("queries", queries, num_heads)
        return pool

    def offset(self, sequence: int) -> int:
        """Row of the pool at which a sequence starts."""
        return sequence * STEP % len(self.keys)

    def pieces(self, sequence: int, length: int) -> Iterator[tuple[slice, slice]]:
        """The first `length` tokens of a sequence as (its tokens, rows of the pool), in one piece or two."""
        start = self.offset(sequence)
        first = min(length, len(self.keys) - start)
        yield slice(0, first), slice(start, start + first)
        if first < length:
            yield slice(first, length), slice(0, length - first)

    def tokens(self, sequence: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values (end - first, Hkv, D) of tokens first ≤ t < end of a sequence."""
        rows = (torch.arange(first, end) + self.offset(sequence)) % len(self.keys)
        return self.keys[rows], self.values[rows]

    def write(self, folder: Path) -> None:
        """Raw numbers for peers, in files of the three names."""
        for name in ("keys", "values", "queries"):
            getattr(self, name).view(torch.uint8).numpy().tofile(folder / name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """A shape laid out for one backend: a cache in shuffled blocks, the batch, and the step's own rows."""

    layer: LayerParams
    batch: AttentionBatch
    cache: KVCache
    query: Tensor
    key: Tensor
    value: Tensor
    limits: Limits


def layer_params(name: str, spec: AttentionSpec, device: str = "cpu") -> LayerParams:
    """A layer's own values, where its features need any: sinks from -1 to 1, and the slopes of Press et al. 2021."""
    heads = torch.arange(1, spec.num_heads + 1)
    return LayerParams(
        name=name,
        spec=spec,
        sinks=torch.linspace(-1.0, 1.0, spec.num_heads).to(device) if spec.sinks else None,
        alibi_slopes=torch.exp2(-8.0 * heads / spec.num_heads).to(device) if spec.alibi else None,
    )


def build_scene(
    shape: Shape,
    pool: Pool,
    spec: AttentionSpec,
    layout: KVLayout,
    make: Callable[[Limits], AttentionBackend[Any]],
    decode_query_len: int,
    device: str = "cpu",
) -> Scene:
    """Allocate the cache on `device` and let an instance of the backend write it."""
    counts = [-(-length // spec.block_size) for _, length in shape.sequences]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(SEED)) + 1
    table = torch.zeros(shape.batch, max(counts), dtype=torch.int32)
    for row, blocks in enumerate(order.to(torch.int32).split(counts)):
        table[row, : len(blocks)] = blocks
    layer = layer_params("layer", spec, device)
    cache = layout.allocate(spec, sum(counts) + 1, device)
    slots = slot_table(table, shape.length, spec.block_size)
    limits = make_limits(shape, max(counts))
    writer = make(replace(limits, max_num_tokens=max(shape.tokens, shape.length)))
    for row, (_, length) in enumerate(shape.sequences):
        for tokens, rows in pool.pieces(row, length):
            key, value = pool.keys[rows].to(device), pool.values[rows].to(device)
            writer.write_kv(layer, key, value, cache, slots[row, tokens].to(device))
    new = [(row, slice(length - queries, length)) for row, (queries, length) in enumerate(shape.sequences)]
    fresh = [pool.tokens(row, own.start, own.stop) for row, own in new]
    return Scene(
        layer=layer,
        batch=make_batch(shape, table, torch.cat([slots[row, own] for row, own in new]), decode_query_len, device),
        cache=cache,
        query=pool.queries[: shape.tokens].to(device, copy=True),
        key=torch.cat([key for key, _ in fresh]).to(device),
        value=torch.cat([value for _, value in fresh]).to(device),
        limits=limits,
    )


def slot_table(table: Tensor, length: int, block_size: int) -> Tensor:
    """int64 (rows, length): the slot of each token, for int32 `table` (rows, blocks)."""
    positions = torch.arange(length)
    return table.long()[:, positions // block_size] * block_size + positions % block_size


def make_limits(shape: Shape, blocks: int) -> Limits:
    """An engine's limits that just hold the shape."""
    return Limits(
        max_num_reqs=shape.batch,
        max_num_tokens=shape.tokens,
        max_model_len=shape.length,
        max_blocks_per_req=blocks,
    )


def make_batch(
    shape: Shape, table: Tensor, slots: Tensor, decode_query_len: int, device: str = "cpu"
) -> AttentionBatch:
    """The step in which every sequence gets its last tokens."""
    queries, keys = zip(*shape.sequences, strict=True)
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(keys, dtype=torch.int32)
    return AttentionBatch(
        num_reqs=shape.batch,
        num_tokens=shape.tokens,
        counts=count_rows(starts[1:] - starts[:-1], lengths, decode_query_len),
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        max_query_len=shape.queries,
        seq_lens=lengths.to(device),
        seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=lengths,
        max_seq_len=shape.length,
        block_table=table.to(device),
        slot_mapping=slots.to(device),
    )
