"""`AttentionBatch`: what one step's attention is about, apart from the vectors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKey:
    """The device graph a step is captured for or replayed from."""

    padded_reqs: int
    padded_tokens: int
    capturing: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMask:
    """An extra mask, present only where the spec announced its kind."""

    kind: str
    """``"spans"`` or ``"tree"``."""
    data: Tensor
    """spans: int32 (n, 3) on the host, rows of (row of the batch, first, end): tokens first ≤ p < end of it see each
    other, besides what causality and window let them see. Spans of a row do not overlap.
    tree: bool (T, max draft tokens) on the device, which earlier tokens of the same row a token sees; keys before the
    row's tokens, and itself, it sees as ever."""

    def rows(self, first: int, end: int, tokens: slice) -> AttentionMask | None:
        """What it says of rows first ≤ r < end, which own these tokens; None where that is nothing."""
        if self.kind == "tree":
            return replace(self, data=self.data[tokens])
        inside = (self.data[:, 0] >= first) & (self.data[:, 0] < end)
        if not bool(inside.any()):
            return None
        return replace(self, data=self.data[inside] - torch.tensor([first, 0, 0], dtype=self.data.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """How many rows and tokens of a batch are of each sort; the rows stand in this order."""

    decodes: int = 0
    """Rows with context and at most `decode_query_len` query tokens."""
    decode_tokens: int = 0
    extends: int = 0
    """Rows with context and more query tokens: chunked prefill, prefix hits. Unsorted batches count as extend."""
    extend_tokens: int = 0
    prefills: int = 0
    """Rows without context: K and V of the step are all they attend to."""
    prefill_tokens: int = 0

    @classmethod
    def of(cls, rows: Sequence[int], tokens: Sequence[int]) -> RowCounts:
        """From counts of rows and of tokens, each in the order decode, extend, prefill."""
        return cls(
            decodes=rows[0],
            decode_tokens=tokens[0],
            extends=rows[1],
            extend_tokens=tokens[1],
            prefills=rows[2],
            prefill_tokens=tokens[2],
        )

    @property
    def mixed(self) -> bool:
        """Whether decodes share the step with rows that are none."""
        return self.decodes > 0 and self.extends + self.prefills > 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBatch:
    """R rows (requests) with T query tokens in all, flattened: row r owns tokens
    `query_start_loc[r]:query_start_loc[r+1]`.

    Rows are ordered decode, extend, prefill (see `RowCounts`). Padding: slot -1 writes nothing, padded table entries
    name the null block 0, padded `seq_lens` are as the backend declared; `num_reqs` and `num_tokens` count only what is
    real. With `graph`, tensors have its sizes, and rows of padding own a token each, as the real ones do.
    """

    num_reqs: int
    num_tokens: int
    counts: RowCounts
    query_start_loc: Tensor
    """int32 (R+1,), on the device."""
    query_start_loc_cpu: Tensor
    """The same on the host, exact."""
    max_query_len: int
    seq_lens: Tensor
    """int32 (R,): keys of each row, those of this step included."""
    seq_lens_cpu: Tensor | None
    """The same on the host, exact; None where the host does not know them."""
    seq_lens_cpu_upper_bound: Tensor
    """int32 (R,), on the host, never less than `seq_lens`; for sizing, not for addressing."""
    max_seq_len: int
    """Upper bound."""
    block_table: Tensor | None = None
    """int32 (R, width): physical blocks of each row, in order; None without a cache. Blocks that lie before the window
    of a row's first query token may be null: their memory is another's by then."""
    slot_mapping: Tensor | None = None
    """int64 (T,): block·block_size + offset that each token's K and V are written to."""
    key_start_loc: Tensor | None = None
    """int32 (R+1,): ragged K/V, offsets into `key` and `value`."""
    max_key_len: int = 0
    graph: GraphKey | None = None
    mask: AttentionMask | None = None

    def tokens(self, first: int, end: int) -> tuple[int, int]:
        """Token range of rows first ≤ r < end."""
        return int(self.query_start_loc_cpu[first]), int(self.query_start_loc_cpu[end])

    def rows(self, first: int, end: int) -> AttentionBatch:
        """Rows first ≤ r < end as a batch of their own, offsets rebased to 0. Host views and one device subtraction."""
        if first == 0 and end == self.num_reqs:
            return self
        start, stop = self.tokens(first, end)
        cpu = self.query_start_loc_cpu[first : end + 1] - start
        shared = self.query_start_loc is self.query_start_loc_cpu
        upper = self.seq_lens_cpu_upper_bound[first:end]
        keys = self.key_start_loc
        return replace(
            self,
            num_reqs=end - first,
            num_tokens=stop - start,
            counts=_clip(self.counts, first, end, self.query_start_loc_cpu),
            query_start_loc=cpu if shared else self.query_start_loc[first : end + 1] - start,
            query_start_loc_cpu=cpu,
            max_query_len=int((cpu[1:] - cpu[:-1]).max()) if end > first else 0,
            seq_lens=self.seq_lens[first:end],
            seq_lens_cpu=None if self.seq_lens_cpu is None else self.seq_lens_cpu[first:end],
            seq_lens_cpu_upper_bound=upper,
            max_seq_len=int(upper.max()) if end > first else 0,
            block_table=None if self.block_table is None else self.block_table[first:end],
            slot_mapping=None if self.slot_mapping is None else self.slot_mapping[start:stop],
            key_start_loc=None if keys is None else keys[first : end + 1] - keys[first],
            mask=None if self.mask is None else self.mask.rows(first, end, slice(start, stop)),
        )


def host_ints(values: Tensor) -> list[int]:
    """A tensor of integers as a list; waits for the device it is on."""
    return cast("list[int]", values.tolist())  # pyright: ignore[reportUnknownMemberType]


def count_rows(query_lens: Tensor, seq_lens: Tensor, decode_query_len: int) -> RowCounts:
    """Counts of a batch on the host; one that is not in order decode, extend, prefill counts as extend throughout."""
    context = seq_lens > query_lens
    decode = context & (query_lens <= decode_query_len)
    sort = torch.where(decode, 0, torch.where(context, 1, 2))
    if bool((sort[1:] < sort[:-1]).any()):
        return RowCounts(extends=len(sort), extend_tokens=int(query_lens.sum()))
    rows = host_ints(torch.bincount(sort, minlength=3))
    tokens = host_ints(torch.bincount(sort, weights=query_lens.double(), minlength=3).long())
    return RowCounts.of(rows, tokens)


def _clip(counts: RowCounts, first: int, end: int, query_start_loc: Tensor) -> RowCounts:
    """The counts of rows first ≤ r < end of a batch with these counts."""
    bounds = [0, counts.decodes, counts.decodes + counts.extends, counts.decodes + counts.extends + counts.prefills]
    rows: list[int] = []
    tokens: list[int] = []
    for low, high in pairwise(bounds):
        a, b = max(low, first), min(high, end)
        rows.append(max(0, b - a))
        tokens.append(int(query_start_loc[b] - query_start_loc[a]) if b > a else 0)
    return RowCounts.of(rows, tokens)
