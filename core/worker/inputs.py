"""One step's inputs: the scheduled tokens of all requests, flattened in the order decode, extend, prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..attention import AttentionBatch, RowCounts
from .block_tables import BlockTable
from .states import Ints, RequestStates


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


class InputBuilder:
    """Owner of the buffers that carry a step to the device; sized once, reused every step."""

    def __init__(
        self,
        states: RequestStates,
        tables: Sequence[BlockTable],
        max_num_tokens: int,
        device: str,
        decode_query_len: int,
    ) -> None:
        self._states = states
        self._tables = tables
        self._decode_query_len = decode_query_len
        self._device = device
        rows = len(states.num_tokens)
        self._input_ids = _Buffer((max_num_tokens,), torch.int64, device)
        self._positions = _Buffer((max_num_tokens,), torch.int64, device)
        self._query_start_loc = _Buffer((rows + 1,), torch.int32, device)
        self._seq_lens = _Buffer((rows,), torch.int32, device)
        self._slot_mappings = [_Buffer((max_num_tokens,), torch.int64, device) for _ in tables]
        self._block_tables = [_Buffer((rows, table.width), torch.int32, device) for table in tables]

    def build(self, num_scheduled_tokens: Mapping[str, int]) -> StepInputs:
        """Inputs for computing so many tokens of each of these requests."""
        ids = list(num_scheduled_tokens)
        states = self._states
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
        batches = self._batches(starts, seq_lens, query_lens, sort, slots, slot_of_token, positions)
        return StepInputs(
            request_ids=tuple(ids[i] for i in order),
            slots=slots,
            query_lens=query_lens,
            input_ids=self._input_ids.fill(states.token_ids[slot_of_token, positions]),
            positions=self._positions.fill(positions),
            logits_rows=starts[1:] - 1,
            complete=np.flatnonzero(seq_lens == states.num_tokens[slots]),
            batches=batches,
        )

    def _batches(
        self,
        starts: Ints,
        seq_lens: Ints,
        query_lens: Ints,
        sort: Ints,
        slots: Ints,
        slot_of_token: Ints,
        positions: Ints,
    ) -> tuple[AttentionBatch, ...]:
        query_start_loc, lengths = self._query_start_loc.fill(starts), self._seq_lens.fill(seq_lens)
        starts_cpu, lengths_cpu = self._query_start_loc.host(len(starts)), self._seq_lens.host(len(seq_lens))
        rows = np.bincount(sort, minlength=3).tolist()
        tokens = np.bincount(sort, weights=query_lens, minlength=3).astype(np.int64).tolist()
        return tuple(
            AttentionBatch(
                num_reqs=len(slots),
                num_tokens=len(positions),
                counts=RowCounts.of(rows, tokens),
                query_start_loc=query_start_loc,
                query_start_loc_cpu=starts_cpu,
                max_query_len=int(query_lens.max()),
                seq_lens=lengths,
                seq_lens_cpu=lengths_cpu,
                seq_lens_cpu_upper_bound=lengths_cpu,
                max_seq_len=int(seq_lens.max()),
                block_table=block_ids.fill(table.rows(slots, seq_lens - query_lens)),
                slot_mapping=slot_mapping.fill(table.slot_mapping(slot_of_token, positions)),
            )
            for table, block_ids, slot_mapping in zip(
                self._tables, self._block_tables, self._slot_mappings, strict=True
            )
        )


class _Buffer:
    """A host tensor, pinned where there is a device to copy to, and its twin there."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        on_device = device != "cpu"
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=on_device)
        self._array = self._host.numpy()
        self._there = torch.zeros(shape, dtype=dtype, device=device) if on_device else self._host

    def fill(self, values: NDArrayLike) -> Tensor:
        """Put `values` into the first rows; returns those rows on the device."""
        count = len(values)
        self._array[:count] = values
        if self._there is not self._host:
            self._there[:count].copy_(self._host[:count], non_blocking=True)
        return self._there[:count]

    def host(self, count: int) -> Tensor:
        """The first rows on the host, as last filled."""
        return self._host[:count]


NDArrayLike = np.ndarray[tuple[int, ...], np.dtype[np.integer]]
