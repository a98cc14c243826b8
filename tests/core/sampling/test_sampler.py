from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headstock.core.params import SamplingParams
from headstock.core.sampling import Sampler, SamplerOutput, SamplingStates

VOCAB = 1000
GREEDY = SamplingParams(temperature=0)


def sample(logits: torch.Tensor, *params: SamplingParams, seeds=None, positions=None) -> SamplerOutput:
    states = SamplingStates(len(params), logits.shape[-1])
    for slot, one in enumerate(params):
        states.add(slot, one, slot if seeds is None else seeds[slot])
    positions = np.zeros(len(params), np.int64) if positions is None else positions
    return Sampler(states)(logits, np.arange(len(params)), positions)


def random_logits(rows: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3)) * 3


def test_greedy_takes_the_likeliest_token_and_the_lowest_id_of_equals():
    logits = torch.zeros(3, VOCAB)
    logits[0, [17, 400, 999]] = 5.0
    logits[1, 999] = 0.1
    assert sample(logits, GREEDY, GREEDY, GREEDY).token_ids.tolist() == [17, 999, 0]


@pytest.mark.parametrize(
    "params",
    [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 2e-5}, {"allowed_token_ids": [17]}],
)
def test_sampling_reduced_to_one_token_is_greedy(params):
    logits = random_logits(1)
    logits[0, 17] = 50
    for seed in range(20):
        assert sample(logits, SamplingParams(**params), seeds=[seed]).token_ids.tolist() == [17]


def test_top_k_one_is_greedy_even_between_equals():
    assert sample(torch.ones(1, 50), SamplingParams(top_k=1), seeds=[5]).token_ids.tolist() == [0]


# 9 degrees of freedom: draws from the stated distribution stay below 27.9 in 99.9 % of cases.
@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("cut", [{}, {"top_k": 10}])
def test_frequencies_are_those_of_the_softmax(along, temperature, cut):
    draws = 4000
    logits = torch.linspace(-1, 1, 10).expand(draws, -1).contiguous()
    other = np.full(draws, 11)
    seeds, positions = (np.arange(draws), other) if along == "seeds" else (other, np.arange(draws))
    params = SamplingParams(temperature=temperature, **cut)
    tokens = sample(logits, *[params] * draws, seeds=seeds, positions=positions).token_ids
    expected = draws * (logits[0] / temperature).softmax(-1)
    assert (((tokens.bincount(minlength=10) - expected) ** 2) / expected).sum() < 27.9


MIXED = [
    GREEDY,
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=30, min_p=0.01),
    SamplingParams(temperature=1.5, repetition_penalty=1.2, presence_penalty=0.4),
    SamplingParams(logit_bias={3: 10.0}, top_p=0.999),
    SamplingParams(allowed_token_ids=list(range(0, VOCAB, 7)), min_tokens=3),
    SamplingParams(temperature=0.3, frequency_penalty=1.0, logprobs=2),
]


def run(order: list[int], logits: torch.Tensor) -> dict[int, tuple[int, object]]:
    """Token and log probabilities of the requests in `order`, sampled in one batch of that order."""
    states = SamplingStates(len(MIXED) + 3, VOCAB)
    slot_of = {request: place + 1 for place, request in enumerate(order)}
    for request, slot in slot_of.items():
        states.add(slot, MIXED[request], seed=100 + request, eos_token_ids=(2,), prompt_token_ids=[5, 6, request])
        states.append(slot, [request, 9])
    slots = np.array([slot_of[request] for request in order])
    output = Sampler(states)(logits[order], slots, np.full(len(order), 2))
    return {request: (int(output.token_ids[row]), output.logprobs.get(row)) for row, request in enumerate(order)}


@pytest.mark.parametrize("seed", range(5))
def test_neither_batch_mates_nor_their_order_change_a_token(seed):
    logits = random_logits(len(MIXED)) / (1 + seed)
    together = run(list(range(len(MIXED))), logits)
    shuffled = run(np.random.default_rng(seed).permutation(len(MIXED)).tolist(), logits)
    alone = {request: run([request], logits)[request] for request in range(len(MIXED))}
    assert together == shuffled == alone


def test_a_request_replayed_in_other_slots_and_company_gives_the_same_tokens():
    logits = random_logits(12)
    params = SamplingParams(temperature=0.8, top_p=0.95, presence_penalty=1.0)

    def replay(cuts: list[int]) -> list[int]:
        tokens: list[int] = []
        for life, end in enumerate(cuts):  # a preemption forgets the state; its return brings the tokens back
            states, slot = SamplingStates(8, VOCAB), 3 + life
            states.add(slot, params, seed=-5, prompt_token_ids=[1, 2])
            states.append(slot, tokens)
            while len(tokens) < end:
                position = np.array([len(tokens)])
                token = Sampler(states)(logits[position[0]][None], np.array([slot]), position).token_ids
                states.append_sampled(np.array([slot]), token.numpy())
                tokens.append(int(token))
        return tokens

    assert replay([12]) == replay([5, 12]) == replay([1, 2, 9, 12])
    assert len(set(replay([12]))) > 1


def test_seed_and_position_each_change_the_draw():
    logits = torch.zeros(64, VOCAB)
    params = [SamplingParams()] * 64
    by_seed = sample(logits, *params, seeds=range(64)).token_ids
    by_position = sample(logits, *params, seeds=[1] * 64, positions=np.arange(64)).token_ids
    assert len(set(by_seed.tolist())) > 50
    assert len(set(by_position.tolist())) > 50
    assert by_seed.tolist() != by_position.tolist()


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=5)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, "all nan"])
def test_logits_that_are_not_finite_fail_their_row_and_no_other(params, bad):
    logits = random_logits(3)
    good = sample(logits, params, params, params).token_ids
    broken = logits.clone()
    broken[1, 5 if bad != "all nan" else slice(None)] = math.nan if bad == "all nan" else bad
    output = sample(broken, params, params, params)
    assert output.token_ids.tolist() == [good[0], -1, good[2]]
    assert list(output.failures) == [1]
    assert "NaN or infinity" in output.failures[1]


def test_a_failed_row_has_no_logprobs():
    logits = random_logits(2)
    logits[0, 0] = math.nan
    asked = SamplingParams(logprobs=1)
    assert list(sample(logits, asked, asked).logprobs) == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_bars_every_token_fails_with_that_reason(temperature):
    params = SamplingParams(temperature=temperature, allowed_token_ids=[4], stop_token_ids=[4], min_tokens=1)
    output = sample(random_logits(2), params, GREEDY)
    assert output.token_ids[0] == -1
    assert "leave no token" in output.failures[0]
    assert output.token_ids[1] >= 0


def test_logprobs_are_of_the_raw_logits():
    logits = random_logits(2)
    params = SamplingParams(temperature=0, allowed_token_ids=[8], repetition_penalty=1.5, logprobs=3)
    output = sample(logits, GREEDY, params)
    assert list(output.logprobs) == [1]
    expected = logits[1].log_softmax(-1)
    assert output.logprobs[1].token_ids == (8, *expected.topk(3).indices.tolist())
    assert output.logprobs[1].logprobs[0] == pytest.approx(expected[8].item(), abs=1e-5)


def test_the_logits_of_the_caller_are_left_alone():
    logits = random_logits(len(MIXED))
    before = logits.clone()
    sample(logits, *MIXED)
    assert logits.equal(before)


def test_double_precision_is_kept():
    logits = torch.tensor([[1.0, 1.0 + 1e-12]], dtype=torch.float64)
    assert sample(logits, GREEDY).token_ids.tolist() == [1]


def test_an_empty_batch_gives_no_tokens():
    output = Sampler(SamplingStates(2, 8))(torch.zeros(0, 8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert output.token_ids.tolist() == []


def test_logits_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="vocabulary"):
        Sampler(SamplingStates(2, 8))(torch.zeros(2, 9), np.arange(2), np.zeros(2, np.int64))
