"""Parts of a batch are batches, with offsets and counts of their own."""

from __future__ import annotations

import pytest
import torch

from headstock.core.attention import RowCounts, count_rows
from support.attention import ints, make_batch


def test_rows_are_counted_by_sort() -> None:
    counts = count_rows(ints([1, 1, 5, 4, 1]), ints([9, 2, 20, 4, 1]), decode_query_len=1)
    assert counts == RowCounts(decodes=2, decode_tokens=2, extends=1, extend_tokens=5, prefills=2, prefill_tokens=5)
    assert counts.mixed


def test_a_longer_decode_query_makes_short_extends_decodes() -> None:
    assert count_rows(ints([1, 3]), ints([9, 20]), decode_query_len=3).decodes == 2


def test_an_unsorted_batch_counts_as_extend() -> None:
    counts = count_rows(ints([4, 1]), ints([4, 9]), decode_query_len=1)
    assert counts == RowCounts(extends=2, extend_tokens=5)


@pytest.mark.parametrize(("first", "end"), [(0, 2), (2, 5), (1, 4), (0, 5), (3, 3)])
def test_a_part_is_what_a_batch_of_its_rows_would_be(first: int, end: int) -> None:
    queries, lengths = [1, 1, 5, 4, 1], [9, 2, 20, 4, 1]
    table = torch.arange(10, dtype=torch.int32).reshape(5, 2) + 1
    whole, alone = (
        make_batch(queries, lengths, table, 16),
        make_batch(queries[first:end], lengths[first:end], table[first:end], 16) if end > first else None,
    )
    part = whole.rows(first, end)
    assert part.num_reqs == end - first
    if alone is None:
        assert part.num_tokens == 0
        return
    assert part.query_start_loc.tolist() == alone.query_start_loc.tolist()
    assert part.slot_mapping.tolist() == alone.slot_mapping.tolist()
    assert part.block_table.tolist() == alone.block_table.tolist()
    assert part.counts == alone.counts
    assert (part.num_tokens, part.max_query_len, part.max_seq_len) == (
        alone.num_tokens,
        alone.max_query_len,
        alone.max_seq_len,
    )
