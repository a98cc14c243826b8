"""How far the answers of two engines are apart: tokens, and the distributions that they were drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...core.params import SamplingParams
from ...entrypoints.llm import LLM

TOP = 20
"""Likeliest tokens of a position that are compared one by one."""
SCORED = 8
"""Requests whose distributions are compared."""
LEAST = 1e-12
"""Probability below which none is taken for less."""

Distribution = Mapping[int, float]
"""Log probabilities of the likeliest tokens."""
Answer = Sequence[tuple[int, Distribution]]
"""Tokens, and what each was drawn from."""


def score(llm: LLM, sequences: Sequence[Sequence[int]]) -> list[list[Distribution]]:
    """The distributions that `llm` gives at every position of `sequences` but the first, the tokens given."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=TOP, detokenize=False)
    llm.reset_prefix_cache()
    outputs = llm.generate([{"prompt_token_ids": list(s)} for s in sequences], params, use_tqdm=False)
    return [
        [{token: found.logprob for token, found in d.items()} for d in output.prompt_logprobs or () if d is not None]
        for output in outputs
    ]


def answers(llm: LLM, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Answer]:
    """What `llm` answers, greedy, with the distribution that each token was drawn from: all but the first were decoded,
    which what `score` gives is not."""
    llm.reset_prefix_cache()
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, logprobs=TOP, detokenize=False) for n in lengths
    ]
    outputs = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False)
    return [
        [
            (token, {t: found.logprob for t, found in d.items()})
            for token, d in zip(output.outputs[0].token_ids, output.outputs[0].logprobs or (), strict=True)
        ]
        for output in outputs
    ]


def divergence(one: Distribution, other: Distribution) -> float:
    """Kullback-Leibler divergence in nats of `other` from `one`, over the tokens that both name and one class of all
    others: a lower bound of the whole, since merging classes never adds to it."""
    common = one.keys() & other.keys()
    p = [math.exp(one[token]) for token in common]
    q = [math.exp(other[token]) for token in common]
    p.append(1 - sum(p))
    q.append(1 - sum(q))
    pairs = [(max(a, LEAST), max(b, LEAST)) for a, b in zip(p, q, strict=True)]
    return max(0.0, sum(a * math.log(a / b) for a, b in pairs))


def divergences(one: Sequence[Sequence[Distribution]], other: Sequence[Sequence[Distribution]]) -> list[float]:
    """At every scored position."""
    return [
        divergence(p, q) for mine, theirs in zip(one, other, strict=True) for p, q in zip(mine, theirs, strict=True)
    ]


def answer_divergences(one: Sequence[Answer], other: Sequence[Answer]) -> list[float]:
    """At every token that both drew after equal tokens: the first one that differs is the last of an answer."""
    found: list[float] = []
    for mine, theirs in zip(one, other, strict=True):
        for (token, p), (drawn, q) in zip(mine, theirs, strict=False):
            found.append(divergence(p, q))
            if token != drawn:
                break
    return found


def first_difference(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> int | None:
    """The earliest place, in tokens of an answer, at which any answer differs; None where all are equal."""
    places = [
        next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        for mine, theirs in zip(one, other, strict=True)
    ]
    return min((place for place in places if place is not None), default=None)
