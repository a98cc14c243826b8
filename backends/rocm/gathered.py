"""Keys that are gathered from a paged cache: which, and in what pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.attention import AttentionBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Keys:
    """Runs of keys, one a row, one after the other."""

    slots: Tensor
    """int64 (n,), on the device: where they lie in the cache."""
    starts: Tensor
    """int32 (R+1,), on the device: offsets of the rows' runs."""
    longest: int
    """Keys of the longest run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Rows with several queries, over which the kernel for ragged batches goes once, and once more a context."""

    tokens: slice
    """Their query tokens in the step."""
    starts: Tensor
    """int32 (R+1,): offsets of the rows' queries among these."""
    max_query_len: int
    keys: Keys
    """What they attend to causally."""
    fresh: bool
    """These keys are just the step's own, so that they need not be gathered where the step brings them."""
    contexts: tuple[Keys, ...] = ()
    """Pieces of what lies before, which every query of a row sees."""


def prompts(batch: AttentionBatch, offset: int, block_size: int) -> Part:
    """Rows without context. `offset` is where their tokens begin in the step."""
    lengths, context = _lengths(batch)
    keys = _keys(batch, torch.zeros_like(lengths), lengths, block_size)
    return _part(batch, offset, keys, fresh=not bool(context.any()))


def continued(batch: AttentionBatch, offset: int, block_size: int, budget: int) -> Part:
    """Rows with context, which is gathered in pieces of up to `budget` tokens, or of one a row where that is more."""
    lengths, context = _lengths(batch)
    each = max(1, budget // batch.num_reqs)
    pieces = [
        _keys(batch, context.clamp(0, first), context.clamp(0, first + each), block_size)
        for first in range(0, int(context.max()), each)
    ]
    own = _keys(batch, context.clamp(min=0), lengths, block_size)
    return _part(batch, offset, own, fresh=bool((context >= 0).all()), contexts=tuple(pieces))


def windowed(batch: AttentionBatch, offset: int, block_size: int, budget: int, left: int) -> Iterator[Part]:
    """Rows with context of which their queries see `left` keys at most, gathered with them: no more than the window's
    tail is read. Rows go together while their keys are within `budget`."""
    lengths, context = _lengths(batch)
    firsts = (context - left).clamp(min=0)
    counts, begin, total = (lengths - firsts).tolist(), 0, 0
    for row, count in enumerate([*counts, budget + 1]):
        if row > begin and total + count > budget:
            rows = batch.rows(begin, row)
            keys = _keys(rows, firsts[begin:row], lengths[begin:row], block_size)
            yield _part(rows, offset + batch.tokens(0, begin)[1], keys, fresh=False)
            begin, total = row, 0
        total += count


def _lengths(batch: AttentionBatch) -> tuple[Tensor, Tensor]:
    """Keys of each row, and how many of them are context, on the host; waits for the device where only it knows.

    Negative is the context of a row with more queries than keys, whose first ones see nothing.
    """
    lengths = batch.seq_lens.cpu() if batch.seq_lens_cpu is None else batch.seq_lens_cpu
    return lengths, lengths - batch.query_start_loc_cpu.diff()


def _part(batch: AttentionBatch, offset: int, keys: Keys, *, fresh: bool, contexts: tuple[Keys, ...] = ()) -> Part:
    return Part(
        tokens=slice(offset, offset + batch.num_tokens),
        starts=batch.query_start_loc,
        max_query_len=batch.max_query_len,
        keys=keys,
        fresh=fresh,
        contexts=contexts,
    )


def _keys(batch: AttentionBatch, firsts: Tensor, ends: Tensor, block_size: int) -> Keys:
    """Keys first ≤ p < end of each row, by int (R,) tensors on the host."""
    assert batch.block_table is not None
    device, counts = batch.block_table.device, (ends - firsts).long()
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    positions = (torch.arange(len(rows)) - starts[rows] + firsts[rows]).to(device)
    blocks = batch.block_table[rows.to(device), positions // block_size].long()
    return Keys(
        slots=blocks * block_size + positions % block_size,
        starts=starts.int().to(device),
        longest=int(counts.max()),
    )
