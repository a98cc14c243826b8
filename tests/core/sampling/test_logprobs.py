from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.sampling import logprobs, prompt_logprobs
from headstock.core.sampling.logprobs import token_logprobs
from headstock.core.sampling.order import descending, largest


def random_logits(rows: int, vocab: int) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 4


def test_values_and_ranks_are_those_of_log_softmax():
    logits, targets = random_logits(6, 300), torch.tensor([0, 7, 299, 7, 150, 3])
    expected = logits.log_softmax(-1)
    for row, entry in enumerate(token_logprobs(logits, targets, [5] * 6)):
        values, ids = expected[row].topk(5)
        assert entry.token_ids == (targets[row].item(), *ids.tolist())
        assert entry.logprobs == pytest.approx([expected[row, targets[row]].item(), *values.tolist()], abs=2e-6)
        assert entry.rank == 1 + (logits[row] > logits[row, targets[row]]).sum().item()


def test_the_likeliest_token_has_rank_one():
    (entry,) = token_logprobs(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([1]), [1])
    assert (entry.rank, entry.token_ids) == (1, (1, 1))


def test_zero_asks_for_the_token_alone_and_minus_one_for_the_whole_vocabulary():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]] * 2)
    alone, whole = token_logprobs(logits, torch.tensor([3, 3]), [0, -1])
    assert alone.token_ids == (3,)
    assert whole.token_ids == (3, 1, 2, 0, 3)
    assert sum(math.exp(value) for value in whole.logprobs[1:]) == pytest.approx(1)
    assert alone.rank == whole.rank == 4


def test_equal_logits_are_ordered_by_id_and_share_a_rank():
    (entry,) = token_logprobs(torch.tensor([[1.0, 2.0, 2.0, 2.0, 2.0]]), torch.tensor([4]), [3])
    assert entry.token_ids == (4, 1, 2, 3)
    assert entry.rank == 1


def test_a_prompt_in_chunks_gives_the_entries_of_the_whole(monkeypatch):
    logits, targets = random_logits(20, 50), torch.arange(20)
    whole = prompt_logprobs(logits, targets, 3)
    parts = [prompt_logprobs(logits[a:b], targets[a:b], 3) for a, b in ((0, 7), (7, 14), (14, 20))]
    assert whole == tuple(entry for part in parts for entry in part)
    monkeypatch.setattr(logprobs, "MAX_ELEMENTS", 150)
    assert prompt_logprobs(logits, targets, 3) == whole
    assert prompt_logprobs(logits[:0], targets[:0], 3) == ()


def test_logits_in_half_precision_are_worked_on_in_single():
    logits = random_logits(2, 100).bfloat16()
    assert prompt_logprobs(logits, torch.tensor([1, 2]), 4) == prompt_logprobs(logits.float(), torch.tensor([1, 2]), 4)


@given(st.lists(st.integers(-2, 2), min_size=12, max_size=12), st.integers(1, 7))
def test_the_order_is_that_of_a_stable_sort(numbers, k):
    values = torch.tensor(numbers, dtype=torch.float32).view(2, 6) * 0.5
    expected, ids = values.sort(dim=-1, descending=True, stable=True)
    top, top_ids = largest(values, k)
    assert top.tolist() == expected[:, :k].tolist()
    assert top_ids.tolist() == ids[:, :k].tolist()
    assert descending(values, min(k, 6)).tolist() == expected[:, :k].tolist()
