"""One step's inputs: the scheduled tokens of all requests, flattened in the order decode, extend, prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..attention import AttentionBatch, GraphKey, RowCounts
from .block_tables import BlockTable
from .states import Ints, RequestStates

NDArrayLike = np.ndarray[tuple[int, ...], np.dtype[np.integer]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInputs:
    """R requests with T tokens in all. Device tensors are views of the builder's buffers, valid until the next step."""

    request_ids: tuple[str, ...]
    slots: Ints
    """(R,) rows of the request states."""
    query_lens: Ints
    input_ids: Tensor
    """int64 (T,)."""
    positions: Tensor
    """int64 (T,)."""
    logits_rows: Ints
    """(R,) the last token of each request."""
    complete: Ints
    """Indices of the requests whose known tokens are all computed after this step: they get a new token."""
    batches: tuple[AttentionBatch, ...]
    """One a KV group."""
    graph: GraphKey | None = None
    """Of the device graph that can compute this step; then the device tensors are padded to its sizes."""
    block_tables: tuple[Tensor, ...] = ()
    """int32 (R, width), one a KV group, on the host."""

    def buffers(self) -> tuple[Tensor, ...]:
        """The device tensors that change from step to step."""
        own = [(b.query_start_loc, b.seq_lens, b.block_table, b.slot_mapping) for b in self.batches]
        return (self.input_ids, self.positions, *(t for tensors in own for t in tensors if t is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSizes:
    """What an `InputBuilder` has room for."""

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    widths: tuple[int, ...]
    """Columns of the block table, one a KV group."""
    graph_sizes: tuple[int, ...] = ()
    """Numbers of rows, ascending, to which steps of single-token rows are padded; larger steps are not."""


class InputBuilder:
    """Owner of the buffers that carry a step to the device; sized once, reused every step, never moved."""

    def __init__(self, sizes: BufferSizes, device: str, *, decode_query_len: int, padded_seq_len: int = 0) -> None:
        self._sizes = sizes
        self._decode_query_len = decode_query_len
        self._padded_seq_len = padded_seq_len
        rows, tokens = sizes.max_num_seqs, sizes.max_num_tokens
        self._input_ids = _Buffer((tokens,), torch.int64, device)
        self._positions = _Buffer((tokens,), torch.int64, device)
        self._query_start_loc = _Buffer((rows + 1,), torch.int32, device)
        self._seq_lens = _Buffer((rows,), torch.int32, device)
        self._slot_mappings = [_Buffer((tokens,), torch.int64, device) for _ in sizes.widths]
        self._block_tables = [_Buffer((rows, width), torch.int32, device) for width in sizes.widths]
        self._sent = None if device == "cpu" else torch.Event(device)
        """When the device has read the buffers of the host."""

    def build(
        self, states: RequestStates, tables: Sequence[BlockTable], num_scheduled_tokens: Mapping[str, int]
    ) -> StepInputs:
        """Inputs for computing so many tokens of each of these requests."""
        if self._sent is not None:
            # Nobody has waited for a step that gave no token: its inputs, too, may still be on their way.
            self._sent.synchronize()
        ids = list(num_scheduled_tokens)
        slots = states.slots(ids)
        query_lens = np.fromiter(num_scheduled_tokens.values(), dtype=np.int64, count=len(ids))
        computed = states.num_computed_tokens[slots]
        sort = np.where(computed == 0, 2, np.where(query_lens <= self._decode_query_len, 0, 1))
        order = np.argsort(sort, kind="stable")
        slots, query_lens, computed, sort = slots[order], query_lens[order], computed[order], sort[order]

        starts = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(query_lens, out=starts[1:])
        row_of_token = np.repeat(np.arange(len(ids)), query_lens)
        positions = np.arange(starts[-1]) - (starts[:-1] - computed)[row_of_token]
        slot_of_token = slots[row_of_token]
        seq_lens = computed + query_lens
        rows = _Rows(
            query_lens=query_lens,
            seq_lens=seq_lens,
            sort=sort,
            starts=starts,
            block_tables=[table.rows(slots, computed) for table in tables],
            slot_mappings=[table.slot_mapping(slot_of_token, positions) for table in tables],
            max_seq_len=int(seq_lens.max()),
        )
        key = self._graph_key(rows)
        num_tokens = None if key is None else key.padded_tokens
        inputs = StepInputs(
            request_ids=tuple(ids[i] for i in order),
            slots=slots,
            query_lens=query_lens,
            input_ids=self._input_ids.fill(states.token_ids[slot_of_token, positions], num_tokens),
            positions=self._positions.fill(positions, num_tokens),
            logits_rows=starts[1:] - 1,
            complete=np.flatnonzero(seq_lens == states.num_tokens[slots]),
            batches=self._batches(rows, key),
            graph=key,
            block_tables=tuple(table.host(len(ids)) for table in self._block_tables),
        )
        if self._sent is not None:
            self._sent.record()
        return inputs

    def blank(self, size: int) -> StepInputs:
        """Inputs to capture a graph of `size` single-token rows with: they read the null block and write nothing."""
        none, ones = np.zeros(size, dtype=np.int64), np.ones(size, dtype=np.int64)
        rows = _Rows(
            query_lens=ones,
            seq_lens=ones,
            sort=none,
            starts=np.arange(size + 1),
            block_tables=[np.zeros((size, width), dtype=np.int32) for width in self._sizes.widths],
            slot_mappings=[-ones for _ in self._sizes.widths],
            max_seq_len=self._sizes.max_model_len,  # so that kernels choose what serves every replay
        )
        key = GraphKey(padded_reqs=size, padded_tokens=size, capturing=True)
        return StepInputs(
            request_ids=(),
            slots=none,
            query_lens=ones,
            input_ids=self._input_ids.fill(none),
            positions=self._positions.fill(none),
            logits_rows=none,
            complete=none[:0],
            batches=self._batches(rows, key),
            graph=key,
        )

    def _graph_key(self, rows: _Rows) -> GraphKey | None:
        """The smallest graph for rows that all are decodes of one token; None where there is none."""
        if rows.sort.any() or rows.query_lens.max() > 1:
            return None
        size = next((size for size in self._sizes.graph_sizes if size >= len(rows.sort)), None)
        return None if size is None else GraphKey(padded_reqs=size, padded_tokens=size, capturing=False)

    def _batches(self, rows: _Rows, key: GraphKey | None) -> tuple[AttentionBatch, ...]:
        """A batch a KV group. Rows that pad a graph have a token each, as the others do."""
        num_reqs, num_tokens = None if key is None else key.padded_reqs, None if key is None else key.padded_tokens
        starts = rows.starts if num_reqs is None else np.arange(num_reqs + 1)
        query_start_loc = self._query_start_loc.fill(starts)
        seq_lens = self._seq_lens.fill(rows.seq_lens, num_reqs, self._padded_seq_len)
        starts_cpu, lengths_cpu = self._query_start_loc.host(len(starts)), self._seq_lens.host(len(seq_lens))
        counts = np.bincount(rows.sort, minlength=3).tolist()
        tokens = np.bincount(rows.sort, weights=rows.query_lens, minlength=3).astype(np.int64).tolist()
        return tuple(
            AttentionBatch(
                num_reqs=len(rows.sort),
                num_tokens=int(rows.starts[-1]),
                counts=RowCounts.of(counts, tokens),
                query_start_loc=query_start_loc,
                query_start_loc_cpu=starts_cpu,
                max_query_len=int(rows.query_lens.max()),
                seq_lens=seq_lens,
                seq_lens_cpu=lengths_cpu,
                seq_lens_cpu_upper_bound=lengths_cpu,
                max_seq_len=rows.max_seq_len,
                block_table=block_table.fill(ids, num_reqs),
                slot_mapping=slot_mapping.fill(slots, num_tokens, -1),
                graph=key,
            )
            for ids, slots, block_table, slot_mapping in zip(
                rows.block_tables, rows.slot_mappings, self._block_tables, self._slot_mappings, strict=True
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """R real rows of a step, in the order decode, extend, prefill; T tokens."""

    query_lens: Ints
    seq_lens: Ints
    sort: Ints
    """0 for decodes, 1 for extends, 2 for prefills."""
    starts: Ints
    """(R+1,)"""
    block_tables: Sequence[NDArrayLike]
    """(R, width), one a KV group."""
    slot_mappings: Sequence[Ints]
    """(T,), one a KV group."""
    max_seq_len: int


class _Buffer:
    """A host tensor, pinned where there is a device to copy to, and its twin there."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        on_device = device != "cpu"
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=on_device)
        self._array = self._host.numpy()
        self._there = torch.zeros(shape, dtype=dtype, device=device) if on_device else self._host

    def fill(self, values: NDArrayLike, size: int | None = None, padding: int = 0) -> Tensor:
        """Put `values` into the first rows, and `padding` behind them up to `size`; those rows on the device."""
        count = size or len(values)
        self._array[: len(values)] = values
        self._array[len(values) : count] = padding
        if self._there is not self._host:
            self._there[:count].copy_(self._host[:count], non_blocking=True)
        return self._there[:count]

    def host(self, count: int) -> Tensor:
        """The first rows on the host, as last filled."""
        return self._host[:count]
