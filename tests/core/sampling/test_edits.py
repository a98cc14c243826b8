from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headstock.core.params import SamplingParams
from headstock.core.sampling import SamplingStates
from headstock.core.sampling.edits import edit

LOGITS = [2.0, -1.0, 0.5, 0.0, 4.0, -3.0]


def edited(params: SamplingParams, *, prompt=(), outputs=(), position: int | None = None, eos=()) -> list[float]:
    """Logits of one request, in the second of three rows; its neighbours must not change."""
    states = SamplingStates(5, len(LOGITS))
    for slot in (1, 3):
        states.add(slot, SamplingParams(), 0)
    states.add(4, params, 0, eos, prompt)
    states.append(4, outputs)
    logits = torch.tensor([LOGITS] * 3)
    positions = np.full(3, len(outputs) if position is None else position)
    result = edit(logits, states, np.array([3, 4, 1]), positions)
    assert logits.tolist() == [LOGITS] * 3
    assert result[0].tolist() == result[2].tolist() == LOGITS
    return result[1].tolist()


def test_logits_are_not_even_copied_where_nothing_is_asked():
    states = SamplingStates(2, 6)
    states.add(0, SamplingParams(top_p=0.5, top_k=3, min_p=0.1, min_tokens=2, logprobs=4), 0)
    logits = torch.tensor([LOGITS])
    assert edit(logits, states, np.array([0]), np.array([2])) is logits


def test_presence_is_subtracted_once_and_frequency_per_occurrence_in_the_output():
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    expected = [2.0 - 0.5 - 3 * 0.25, -1.0, 0.5, 0.0 - 0.5 - 0.25, 4.0, -3.0]
    assert edited(params, prompt=[4, 5], outputs=[0, 0, 3, 0]) == pytest.approx(expected)


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output():
    expected = [1.0, -2.0, 0.5, 0.0, 4.0, -3.0]
    assert edited(SamplingParams(repetition_penalty=2.0), prompt=[1, 1], outputs=[0, 3]) == pytest.approx(expected)


def test_repetition_comes_before_the_other_penalties():
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5)
    assert edited(params, outputs=[0, 0])[0] == pytest.approx(2.0 / 2 - 1.0 - 2 * 0.5)


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_repetition_is_that_of_transformers(penalty):
    from transformers import RepetitionPenaltyLogitsProcessor

    prompt, outputs = [1, 1, 4], [0, 2]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + outputs]), torch.tensor([LOGITS]))
    ours = edited(SamplingParams(repetition_penalty=penalty), prompt=prompt, outputs=outputs)
    assert ours == pytest.approx(theirs[0].tolist())


def test_allowed_tokens_keep_their_logits_and_others_are_barred():
    inf = -math.inf
    assert edited(SamplingParams(allowed_token_ids=[5, 0, 5])) == [2.0, inf, inf, inf, inf, -3.0]


def test_bias_is_added_but_does_not_bring_back_what_is_barred():
    params = SamplingParams(logit_bias={0: -1.5, 2: 100, 4: 3}, allowed_token_ids=[0, 4])
    assert edited(params) == [0.5, -math.inf, -math.inf, -math.inf, 7.0, -math.inf]


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize(("position", "barred"), [(0, True), (2, True), (3, False), (9, False)])
def test_no_end_can_be_sampled_before_min_tokens(position, barred, ignore_eos):
    params = SamplingParams(min_tokens=3, stop_token_ids=[4], logit_bias={4: 50.0}, ignore_eos=ignore_eos)
    result = edited(params, eos=(0, 5), position=position)
    assert [value == -math.inf for value in result] == [barred, False, False, False, barred, barred]
