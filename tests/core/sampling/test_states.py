from __future__ import annotations

import numpy as np
import pytest
import torch

from headstock.core.errors import InvalidInput
from headstock.core.params import SamplingParams
from headstock.core.sampling import Sampler, SamplingStates

PENALTY = SamplingParams(presence_penalty=1.0)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logit_bias", {"logit_bias": {100: 1.0}}),
        ("logit_bias", {"logit_bias": {-1: 1.0}}),
        ("stop_token_ids", {"stop_token_ids": [100]}),
        ("stop_token_ids", {"stop_token_ids": [-1], "min_tokens": 1}),
        ("allowed_token_ids", {"allowed_token_ids": [0, -1]}),
        ("allowed_token_ids", {"allowed_token_ids": [100]}),
        ("logprobs", {"logprobs": 101}),
        ("prompt_logprobs", {"prompt_logprobs": 101}),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused_by_field_and_changes_nothing(field, params):
    states = SamplingStates(2, 100)
    states.add(0, SamplingParams(temperature=0), 0)
    with pytest.raises(InvalidInput) as caught:
        states.add(0, SamplingParams(**params), 0)
    assert caught.value.field == field
    assert not states.random[0]
    assert not states.rules


@pytest.mark.parametrize("token", [-1, 100])
def test_a_prompt_id_outside_the_vocabulary_cannot_be_counted(token):
    states = SamplingStates(2, 100)
    with pytest.raises(InvalidInput, match=f"prompt: token id {token} is not in the vocabulary"):
        states.add(0, PENALTY, 0, prompt_token_ids=[3, token])
    assert (states.counts.row_of == -1).all()


def test_an_end_of_sequence_beyond_the_logits_is_ignored():
    states = SamplingStates(1, 4)
    states.add(0, SamplingParams(temperature=0, min_tokens=5), 0, eos_token_ids=(7, -1, 3))
    output = Sampler(states)(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), np.array([0]), np.array([0]))
    assert output.token_ids.tolist() == [2]


def test_only_requests_with_penalties_take_memory_for_counts_and_the_last_gives_it_back():
    states = SamplingStates(64, 1000)
    for slot in range(32):
        states.add(slot, SamplingParams(), 0, prompt_token_ids=[1, 2])
    assert states.counts.output_counts.numel() == 0
    for slot in range(5):
        states.add(slot, PENALTY, 0, prompt_token_ids=[1, 2])
    assert len(states.counts.output_counts) == 8
    for slot in range(5):
        states.remove(slot)
    assert states.counts.output_counts.numel() == 0


def test_counts_are_kept_when_the_table_grows():
    states = SamplingStates(20, 10)
    for slot in range(20):
        states.add(slot, PENALTY, 0, prompt_token_ids=[slot % 10])
        states.append(slot, [slot % 7, 9])
    for slot in range(20):
        row = states.counts.row_of[slot]
        expected = torch.zeros(10, dtype=torch.int32)
        expected[slot % 7] += 1
        expected[9] += 1
        assert states.counts.output_counts[row].equal(expected)
        assert set(states.counts.seen[row].nonzero()[:, 0].tolist()) == {slot % 10, slot % 7, 9}


def test_a_slot_is_clean_for_the_next_request():
    states, sampler = SamplingStates(1, 6), None
    busy = SamplingParams(
        temperature=0.7, top_k=2, top_p=0.5, min_p=0.1, presence_penalty=2, repetition_penalty=3, frequency_penalty=2,
        logit_bias={1: 5.0}, allowed_token_ids=[1, 2], min_tokens=9, stop_token_ids=[5], logprobs=3,
    )  # fmt: skip
    states.add(0, busy, 1, eos_token_ids=(5,), prompt_token_ids=[5, 5])
    states.append(0, [5, 4, 4])
    states.add(0, SamplingParams(temperature=0), 0)
    sampler = Sampler(states)
    output = sampler(torch.arange(6.0)[None], np.array([0]), np.array([0]))
    assert output.token_ids.tolist() == [5]
    assert not output.logprobs


def test_counts_do_not_pass_on_to_the_next_request():
    states = SamplingStates(4, 10)
    states.add(0, PENALTY, 0)
    states.add(1, PENALTY, 0, prompt_token_ids=[7])
    states.append(1, [3, 3])
    row = states.counts.row_of[1]
    states.remove(1)
    states.add(2, PENALTY, 0, prompt_token_ids=[8])
    assert states.counts.row_of[2] == row
    assert states.counts.output_counts[row].sum() == 0
    assert states.counts.seen[row].nonzero()[:, 0].tolist() == [8]


def test_sampled_tokens_are_counted_for_all_slots_at_once_and_failed_rows_left_out():
    states = SamplingStates(4, 10)
    for slot in (0, 1, 3):
        states.add(slot, PENALTY if slot != 1 else SamplingParams(), 0)
    states.append_sampled(np.array([3, 1, 0, 3]), np.array([2, 5, -1, 2]))
    counts = states.counts
    assert counts.output_counts[counts.row_of[3]].tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    assert counts.output_counts[counts.row_of[0]].sum() == 0
