from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.sampling import draw
from headstock.core.sampling.draw import Cuts, pick, pick_cut

LAST = 1 - 2.0**-53
"""The largest number below 1 that can be drawn."""


def cuts(rows: int, vocab: int, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Cuts:
    return Cuts(
        top_k=torch.full((rows,), top_k or vocab),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        min_p=torch.full((rows,), min_p, dtype=torch.float64),
    )


def pick_each(weights: list[float], numbers: list[float]) -> list[int]:
    rows = torch.tensor([weights] * len(numbers))
    return pick(rows, torch.tensor(numbers, dtype=torch.float64)).tolist()


def cut_each(probabilities: list[float], numbers: list[float], **cut) -> list[int]:
    scores = torch.tensor([probabilities] * len(numbers)).log()
    scores -= scores.max()
    return pick_cut(scores, cuts(*scores.shape, **cut), torch.tensor(numbers, dtype=torch.float64)).tolist()


def kept(probabilities: list[float], **cut) -> list[int]:
    """Every token that some number picks, likeliest first."""
    return list(dict.fromkeys(cut_each(probabilities, [*np.arange(0, 1, 1 / 512), LAST], **cut)))


def test_places_are_as_wide_as_their_weights():
    assert pick_each([1, 0, 2, 1, 0], [0.0, 0.2499, 0.25, 0.7499, 0.75, LAST]) == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("place", [0, 255, 256, 511, 700, 999])
def test_a_lone_weight_is_picked_wherever_it_stands(place):
    weights = torch.zeros(3, 1000)
    weights[:, place] = 0.3
    assert pick(weights, torch.tensor([0.0, 0.5, LAST], dtype=torch.float64)).tolist() == [place] * 3


@given(st.lists(st.integers(0, 3), min_size=1, max_size=700).filter(any), st.integers(0, 2**53 - 1))
def test_the_place_is_that_of_the_running_sum(weights, number):
    uniform = number * 2.0**-53
    (place,) = pick_each(weights, [uniform])
    below = sum(weights[:place])
    assert weights[place] > 0
    assert below / sum(weights) <= uniform
    assert uniform < (below + weights[place]) / sum(weights) or uniform == LAST


PROBABILITIES = [0.1, 0.4, 0.2, 0.3]


@pytest.mark.parametrize(
    ("cut", "tokens"),
    [
        ({"top_p": 0.05}, [1]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.69}, [1, 3]),
        ({"top_p": 0.71}, [1, 3, 2]),
        ({"top_p": 0.89}, [1, 3, 2]),
        ({"top_p": 0.91}, [1, 3, 2, 0]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 2]),
        ({"top_k": 9}, [1, 3, 2, 0]),
        ({"min_p": 0.76}, [1]),
        ({"min_p": 0.74}, [1, 3]),
        ({"min_p": 0.24}, [1, 3, 2, 0]),
        ({"min_p": 1.0}, [1]),
        # Top-p is a share of what top-k and min-p leave: of 0.4 + 0.3, the first has 0.57.
        ({"top_k": 2, "top_p": 0.56}, [1]),
        ({"top_k": 2, "top_p": 0.58}, [1, 3]),
        ({"min_p": 0.74, "top_p": 0.56}, [1]),
        ({"min_p": 0.74, "top_p": 0.58}, [1, 3]),
        ({"min_p": 0.49, "top_k": 2}, [1, 3]),
    ],
)
def test_what_is_kept_is_what_the_sums_say(cut, tokens):
    assert kept(PROBABILITIES, **cut) == tokens


@pytest.mark.parametrize(
    ("cut", "tokens"),
    [({"top_p": 0.5}, [0, 1]), ({"top_p": 0.51}, [0, 1, 2]), ({"top_k": 3}, [0, 1, 2]), ({"min_p": 1.0}, [0, 1, 2, 3])],
)
def test_of_equally_likely_tokens_the_lowest_ids_are_kept(cut, tokens):
    assert kept([0.25] * 4, **cut) == tokens


def test_tokens_that_cannot_be_sampled_are_not_kept():
    assert kept([0.0, 0.5, 0.0, 0.5], top_k=3) == [1, 3]


def reference(scores: np.ndarray, uniform: float, top_k: int, top_p: float, min_p: float) -> int:
    """The same drawn from a sorted list in Python, in exact sums of powers of two."""
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    left = [token for token in order if scores[token] > -math.inf and 2.0 ** scores[token] >= min_p]
    left = left[: top_k or len(scores)]
    total, below, nucleus = sum(2.0 ** scores[token] for token in left), 0.0, []
    for token in left:
        if top_p < 1 and below >= top_p * total:
            break
        nucleus.append(token)
        below += 2.0 ** scores[token]
    point, below = uniform * below, 0.0
    for token in nucleus:
        below += 2.0 ** scores[token]
        if point < below:
            return token
    return nucleus[-1]


@pytest.mark.parametrize("width", [2, 7, 4096])
@given(
    exponents=st.lists(st.sampled_from([0, -1, -2, -3, -6, -math.inf]), min_size=1, max_size=30),
    number=st.integers(0, 999),
    top_k=st.sampled_from([0, 1, 2, 5, 8, 30]),
    top_p=st.sampled_from([1.0, 0.001, 0.3001, 0.7003, 0.9007]),
    min_p=st.sampled_from([0.0, 0.2003, 0.6001]),
)
def test_a_draw_is_that_of_a_sorted_list_however_few_values_are_ordered_at_first(
    width, exponents, number, top_k, top_p, min_p
):
    scores = np.array([0.0, *exponents])
    uniform = (number + 0.5) / 1000.137
    logits = torch.tensor(np.stack([scores, np.zeros_like(scores)]) * math.log(2), dtype=torch.float64)
    numbers = torch.full((2,), uniform, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "WIDTH", width)
        picked = pick_cut(logits, cuts(2, len(scores), top_k=top_k, top_p=top_p, min_p=min_p), numbers)
    assert picked.tolist() == [reference(row, uniform, top_k, top_p, min_p) for row in (scores, np.zeros_like(scores))]


@pytest.mark.parametrize("cut", [{"top_k": 5, "min_p": 0.0}, {"top_k": 0, "min_p": 0.5}])
@pytest.mark.parametrize("top_p", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("number", [0.1, 0.7, 0.9])
def test_the_share_of_top_p_counts_what_lies_beyond_the_values_ordered_at_first(monkeypatch, cut, top_p, number):
    # Five tokens of weight 1 are left, of which four are in view; the 128 others weigh 2 together.
    scores = np.array([0.0] * 5 + [-6.0] * 128)
    monkeypatch.setattr(draw, "WIDTH", 4)
    picked = pick_cut(
        torch.tensor(scores)[None] * math.log(2),
        cuts(1, len(scores), top_p=top_p, **cut),
        torch.tensor([number], dtype=torch.float64),
    )
    assert picked.tolist() == [int(number * math.ceil(top_p * 5))] == [reference(scores, number, top_p=top_p, **cut)]


@pytest.mark.parametrize(
    "cut",
    [
        {"top_k": 5},
        {"top_k": 600},
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"min_p": 0.1},
        {"top_k": 40, "top_p": 0.8},
        {"min_p": 0.02, "top_k": 30, "top_p": 0.9},
    ],
)
def test_probabilities_are_those_of_the_logits_warpers_of_transformers(cut):
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    vocab, temperature = 5000, 0.7
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1)) * 2
    theirs = TemperatureLogitsWarper(temperature)(None, logits)
    if "min_p" in cut:
        theirs = MinPLogitsWarper(cut["min_p"])(None, theirs)
    if "top_k" in cut:
        theirs = TopKLogitsWarper(cut["top_k"])(None, theirs)
    if "top_p" in cut:
        theirs = TopPLogitsWarper(cut["top_p"])(None, theirs)
    probabilities, order = theirs[0].double().softmax(-1).sort(descending=True)
    tokens = order[probabilities > 0]
    middles = (probabilities.cumsum(-1) - probabilities / 2)[: len(tokens)]
    numbers = torch.cat((torch.zeros(1), middles, torch.tensor([LAST])))
    scores = draw.scaled(logits, logits.max(-1).values, np.array([temperature])).repeat(len(numbers), 1)
    picked = pick_cut(scores, cuts(len(numbers), vocab, **cut), numbers.double())
    assert picked.tolist() == [tokens[0], *tokens.tolist(), tokens[-1]]
