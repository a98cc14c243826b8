"""How often tokens occurred, for the requests whose penalties need it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class PenaltyCounts:
    """A row of `vocab_size` counts for each request that uses penalties (5 bytes a token), and nothing for others."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device | str) -> None:
        self.row_of = np.full(max_num_seqs, -1, np.int64)
        """Slot → row of the tensors below, -1 without penalties."""
        self.output_counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        """Occurrences in the output."""
        self.seen = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        """Whether the token occurs in prompt or output."""
        self._free: list[int] = []

    def add(self, slot: int, prompt_token_ids: Sequence[int]) -> None:
        """Give `slot` a row. Ids must lie in the vocabulary."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.row_of[slot] = row
        self.output_counts[row].zero_()
        self.seen[row].zero_()
        self.seen[row, torch.tensor(prompt_token_ids, dtype=torch.int64)] = True

    def append(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Count one output token for each of `slots`, which may repeat; -1 is no token."""
        rows = self.row_of[slots]
        counted = (rows >= 0) & (token_ids >= 0)
        if counted.any():
            device = self.output_counts.device
            index = tuple(torch.from_numpy(part[counted]).to(device) for part in (rows, token_ids))
            self.output_counts.index_put_(index, self.output_counts.new_ones(()), accumulate=True)
            self.seen[index] = True

    def remove(self, slot: int) -> None:
        """Take the row back; the last one to go frees the memory."""
        row = int(self.row_of[slot])
        if row < 0:
            return
        self.row_of[slot] = -1
        self._free.append(row)
        if len(self._free) == len(self.output_counts):
            self.output_counts, self.seen = self.output_counts[:0].clone(), self.seen[:0].clone()
            self._free = []

    def _grow(self) -> None:
        """Twice the rows, at least 4, at most one a slot."""
        old = len(self.output_counts)
        new = min(max(4, 2 * old), len(self.row_of))
        self.output_counts = _extended(self.output_counts, new)
        self.seen = _extended(self.seen, new)
        self._free = list(range(new - 1, old - 1, -1))


def _extended(rows: Tensor, count: int) -> Tensor:
    return torch.cat((rows, rows.new_zeros((count - len(rows), rows.shape[1]))))
