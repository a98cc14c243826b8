"""Block tables of the KV groups, one row a slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .states import Ints


class BlockTable:
    """One KV group's table: which blocks hold a request's tokens, in order. Unused entries name the null block.

    With a `reach`, so do those of blocks that lie further than that many tokens before the next one: they are somebody
    else's by now.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int, reach: int | None = None) -> None:
        self.block_size = block_size
        self._reach = reach
        self._num_left = np.zeros(max_num_seqs, dtype=np.int64)
        self.width = -(-max_model_len // block_size)
        self.ids = np.zeros((max_num_seqs, self.width), dtype=np.int32)
        self._counts = np.zeros(max_num_seqs, dtype=np.int64)

    def append(self, slot: int, block_ids: Sequence[int]) -> None:
        first = self._counts[slot]
        self.ids[slot, first : first + len(block_ids)] = block_ids
        self._counts[slot] = first + len(block_ids)

    def clear(self, slot: int) -> None:
        self.ids[slot, : self._counts[slot]] = 0
        self._counts[slot] = self._num_left[slot] = 0

    def rows(self, slots: Ints, num_computed: Ints) -> NDArray[np.int32]:
        """Rows of `slots`, of which `num_computed` tokens each are computed."""
        if self._reach is not None:
            first = np.maximum(num_computed - self._reach, 0) // self.block_size
            for i in np.flatnonzero(first > self._num_left[slots]).tolist():
                self.ids[slots[i], self._num_left[slots[i]] : first[i]] = 0
            self._num_left[slots] = np.maximum(first, self._num_left[slots])
        return self.ids[slots]

    def slot_mapping(self, slots: Ints, positions: Ints) -> Ints:
        """Where the KV of the token at each position of each slot goes: block·block_size + offset, in 64 bits."""
        blocks = self.ids[slots, positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size
