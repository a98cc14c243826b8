"""`SamplingStates`: the sampling parameters of all running requests, as arrays over slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInput
from ..params import SamplingParams
from .penalty_counts import PenaltyCounts

NO_LOGPROBS = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a request says about single tokens. Id tensors are int64, without repetition."""

    allowed_ids: Tensor | None
    """Only these can be sampled."""
    bias_ids: Tensor
    bias: Tensor
    """Added to the logits of `bias_ids`, float32."""
    end_ids: Tensor
    """End-of-sequence and stop tokens, barred from the first `min_tokens` tokens."""


class SamplingStates:
    """Parameters and token counts by slot: written when a request comes or a token is sampled, gathered every step."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device | str = "cpu") -> None:
        """Room for `max_num_seqs` requests; `vocab_size` is the width of the logits, which lie on `device`."""
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.temperature = np.ones(max_num_seqs)
        self.top_k = np.full(max_num_seqs, vocab_size, np.int64)
        self.top_p = np.ones(max_num_seqs)
        self.min_p = np.zeros(max_num_seqs)
        self.repetition_penalty = np.ones(max_num_seqs)
        self.frequency_penalty = np.zeros(max_num_seqs)
        self.presence_penalty = np.zeros(max_num_seqs)
        self.min_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int64)
        """Likeliest tokens to report; -1 all of them, `NO_LOGPROBS` no report."""
        self.seeds = np.zeros(max_num_seqs, np.int64)
        self.random = np.zeros(max_num_seqs, np.bool_)
        """Not greedy."""
        self.truncates = np.zeros(max_num_seqs, np.bool_)
        """Random, with top-k, top-p or min-p at work."""
        self.rules: dict[int, TokenRules] = {}
        """For the slots that have any."""
        self.counts = PenaltyCounts(max_num_seqs, vocab_size, self.device)

    def add(
        self,
        slot: int,
        params: SamplingParams,
        seed: int,
        eos_token_ids: Iterable[int] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """Fill `slot`, whatever it held before, with a request that has no output yet.

        `seed` is the stream of random numbers, a 64-bit signed integer; `params.seed` is not looked at. Raises
        `InvalidInput` for ids outside the vocabulary, before anything is written.
        """
        params.check_vocabulary(self.vocab_size)
        penalised = _penalised(params)
        if penalised:
            _check_prompt(prompt_token_ids, self.vocab_size)
        self.remove(slot)
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k or self.vocab_size
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.repetition_penalty[slot] = params.repetition_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.presence_penalty[slot] = params.presence_penalty
        self.min_tokens[slot] = params.min_tokens
        self.num_logprobs[slot] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.seeds[slot] = seed
        self.random[slot] = not params.greedy
        self.truncates[slot] = 0 < params.top_k < self.vocab_size or params.top_p < 1 or params.min_p > 0
        if params.logit_bias or params.allowed_token_ids is not None or params.min_tokens:
            self.rules[slot] = self._rules(params, eos_token_ids)
        if penalised:
            self.counts.add(slot, prompt_token_ids)

    def append(self, slot: int, token_ids: Sequence[int]) -> None:
        """Note output tokens of one request, such as those from before a preemption."""
        if self.counts.row_of[slot] >= 0:
            self.append_sampled(np.full(len(token_ids), slot, np.int64), np.array(token_ids, np.int64))

    def append_sampled(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Note one output token, as the sampler gave it, for each of `slots`; -1 is no token."""
        self.counts.append(slots, token_ids)

    def remove(self, slot: int) -> None:
        """Forget the request of `slot`, if any."""
        self.rules.pop(slot, None)
        self.counts.remove(slot)
        self.random[slot] = self.truncates[slot] = False
        self.num_logprobs[slot] = NO_LOGPROBS

    def _rules(self, params: SamplingParams, eos_token_ids: Iterable[int]) -> TokenRules:
        # A model may declare an end of sequence that its logits do not reach; it cannot be sampled anyway.
        ends = {token for token in (*eos_token_ids, *params.stop_ids) if 0 <= token < self.vocab_size}
        bias = params.logit_bias or {}
        allowed = params.allowed_token_ids
        return TokenRules(
            allowed_ids=None if allowed is None else self._ids(sorted(set(allowed))),
            bias_ids=self._ids(list(bias)),
            bias=torch.tensor(list(bias.values()), dtype=torch.float32, device=self.device),
            end_ids=self._ids(sorted(ends)),
        )

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0


def _check_prompt(token_ids: Sequence[int], vocab_size: int) -> None:
    ids = np.asarray(token_ids, np.int64)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise InvalidInput("prompt", f"token id {wrong[0]} is not in the vocabulary (0 to {vocab_size - 1})")
