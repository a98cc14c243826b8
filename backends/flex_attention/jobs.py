"""A step cut into calls of `flex_attention`: decodes share one, every other row has its own; and the masks of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from ...core.attention import AttentionBatch, AttentionMask, AttentionSpec

Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) → whether the query sees the key, as flex_attention asks."""
Number = Callable[[Tensor], "Tensor | int"]
"""(batch) → a number of the call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """Rows of one call."""

    tokens: slice | Tensor
    """Their query tokens in the batch."""
    rows: int
    queries: int
    keys: int
    """Keys of each row, the longest's: shorter rows repeat their first key, which the mask hides."""
    slots: Tensor | None
    """int64 (rows·keys,): where the keys are in the cache."""
    fresh: slice | None
    """The same as rows of ragged `key` and `value`."""
    mask: Any
    """The block mask."""
    behind: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(batch, query, key) → how far the key is behind the query, for ALiBi."""


def jobs(spec: AttentionSpec, batch: AttentionBatch) -> Iterator[Job]:
    """The calls of a step; rows without a query or without a key are in none."""
    lengths = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.seq_lens.cpu()
    starts = batch.query_start_loc_cpu
    queries = starts[1:] - starts[:-1]
    some = (queries > 0) & (lengths > 0)
    single = some & (queries == 1) & (batch.block_table is not None) & (batch.mask is None)
    rows = torch.nonzero(single).flatten()
    if len(rows):
        yield _decodes(spec, batch, rows, lengths[rows].long())
    for row in torch.nonzero(some & ~single).flatten().tolist():
        yield _row(spec, batch, row, int(queries[row]), int(lengths[row]))


def _decodes(spec: AttentionSpec, batch: AttentionBatch, rows: Tensor, lengths: Tensor) -> Job:
    """Rows of one query in one call, padded to the longest."""
    device = batch.seq_lens.device
    firsts = torch.tensor([first_key(spec, 1, n) for n in lengths.tolist()])
    counts = lengths - firsts
    width = int(counts.max())
    offsets = torch.arange(width)
    positions = firsts[:, None] + torch.where(offsets < counts[:, None], offsets, 0)
    there = counts.to(device)

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < there[b]

    def behind(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return there[b] - 1 - k

    return Job(
        tokens=batch.query_start_loc_cpu[rows].long().to(device),
        rows=len(rows),
        queries=1,
        keys=width,
        slots=_slots(spec, batch, rows.to(device), positions.to(device)),
        fresh=None,
        mask=create_block_mask(seen, len(rows), None, 1, width, device=device),
        behind=behind,
    )


def _row(spec: AttentionSpec, batch: AttentionBatch, row: int, queries: int, length: int) -> Job:
    """One row in a call of its own."""
    device = batch.seq_lens.device
    start, stop = batch.tokens(row, row + 1)
    first = 0 if batch.mask is not None else first_key(spec, queries, length)
    slots = fresh = None
    if batch.block_table is not None:
        positions = torch.arange(first, length, device=device)[None]
        slots = _slots(spec, batch, torch.tensor([row], device=device), positions)
    else:
        offsets = batch.query_start_loc_cpu if batch.key_start_loc is None else batch.key_start_loc
        fresh = slice(int(offsets[row]) + first, int(offsets[row]) + length)
    ahead = number(length - queries - first, device)
    seen = plain(spec, ahead)
    if batch.mask is not None:
        names = torch.full((length,), -1, dtype=torch.int32, device=device)
        seen = widened(batch.mask, row, slice(start, stop), ahead, names, seen)
    return Job(
        tokens=slice(start, stop),
        rows=1,
        queries=queries,
        keys=length - first,
        slots=slots,
        fresh=fresh,
        mask=create_block_mask(seen, None, None, queries, length - first, device=device),
        behind=lambda b, q, k: q + ahead(b) - k,
    )


def number(value: int, device: torch.device) -> Number:
    """`value` for mask functions: where they are compiled, in a tensor, so that what serves one row serves the next.

    Uncompiled, reading a tensor takes some 20 ms, as each access becomes a function of autograd's.
    """
    if device.type == "cpu":
        return lambda b: value
    held = torch.tensor([value], device=device)
    return lambda b: held[b]


def plain(spec: AttentionSpec, ahead: Number) -> Seen:
    """What causality and window let a query see; `ahead` keys lie before the first query's own."""
    left, right = spec.window or (-1, -1)
    right = 0 if spec.causal else right

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        visible = k >= 0
        if left >= 0:
            visible = visible & (k >= q + ahead(b) - left)
        if right >= 0:
            visible = visible & (k <= q + ahead(b) + right)
        return visible

    return seen


def widened(mask: AttentionMask, row: int, tokens: slice, ahead: Number, names: Tensor, plain: Seen) -> Seen:
    """`plain` as an extra mask changes it: spans add to it, a tree decides among the row's own tokens.

    `names` (length,) has the row's room for the number of each key's span.
    """
    if mask.kind == "spans":
        for i, (request, first, end) in enumerate(mask.data.tolist()):
            if request == row:
                names[first:end] = i

        def spans(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            own = names[q + ahead(b)]
            return plain(b, h, q, k) | ((own >= 0) & (own == names[k]))

        return spans
    ancestors = mask.data[tokens]

    def tree(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        draft = k - ahead(b)
        earlier = (draft >= 0) & (draft < q) & ancestors[q, draft.clamp(0, ancestors.shape[1] - 1)]
        return plain(b, h, q, k) & ((draft < 0) | (draft == q) | earlier)

    return tree


def first_key(spec: AttentionSpec, queries: int, length: int) -> int:
    """First key that any of the last `queries` of `length` tokens sees."""
    if spec.window is None or spec.window[0] < 0:
        return 0
    return min(max(0, length - queries - spec.window[0]), length - 1)


def _slots(spec: AttentionSpec, batch: AttentionBatch, rows: Tensor, positions: Tensor) -> Tensor | None:
    """int64 (rows·keys,) slots of key `positions` (rows, keys)."""
    if batch.block_table is None:
        return None
    size = spec.block_size
    blocks = batch.block_table[rows].long().gather(1, positions // size)
    return (blocks * size + positions % size).flatten()
