"""A batch's pages in the form FlashInfer plans with: offsets and lengths on the host, page numbers on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.attention import AttentionBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pages:
    """Rows' pages, one row after the other."""

    starts: Tensor
    """int32 (R+1,), on the host: offsets into `indices`."""
    indices: Tensor
    """int32 (pages,), on the device."""
    last: Tensor
    """int32 (R,), on the host: tokens in each row's last page, from 1 to a whole one."""

    def rows(self, first: int, end: int) -> Pages:
        """Those of rows first ≤ r < end."""
        start, stop = int(self.starts[first]), int(self.starts[end])
        return Pages(
            starts=self.starts[first : end + 1] - start, indices=self.indices[start:stop], last=self.last[first:end]
        )


def pages_of(batch: AttentionBatch, block_size: int) -> Pages:
    """The pages that hold keys. Every row has one at least: a row without a key is none that this is asked for."""
    lengths, table = batch.seq_lens_cpu, batch.block_table
    if lengths is None or table is None:
        raise ValueError("pages need exact lengths and a block table")
    counts = (lengths + (block_size - 1)) // block_size
    starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
    torch.cumsum(counts, 0, dtype=torch.int32, out=starts[1:])
    row = torch.repeat_interleave(torch.arange(len(counts)), counts.long())
    column = torch.arange(len(row)) - starts[:-1].long()[row]
    return Pages(
        starts=starts,
        indices=table[row.to(table.device), column.to(table.device)],
        last=(lengths - 1) % block_size + 1,
    )
