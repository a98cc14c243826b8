"""`Sampler`: logits of a step to one token a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..outputs import TokenLogprobs
from .draw import Cuts, pick, pick_cut, scaled
from .edits import edit
from .logprobs import token_logprobs
from .order import at_least_float32
from .random_numbers import uniforms
from .states import NO_LOGPROBS, SamplingStates

NO_TOKEN = -1
NOT_FINITE = "the model's logits hold NaN or infinity; the weights, or the attention backend, may be at fault"
ALL_BARRED = "allowed_token_ids, stop tokens and min_tokens together leave no token that could be sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The tokens of one step."""

    token_ids: Tensor
    """(rows,) int64, on the logits' device; -1 in rows that failed."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict[int, TokenLogprobs])
    """Row → its token's log probabilities, where asked for."""
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    """Row → why no token could be sampled. The request has to end with an error; its neighbours are not touched."""


class Sampler:
    """Samples by the parameters in a `SamplingStates`. Keeps nothing from step to step.

    Order, as in vLLM: log probabilities from the raw logits → allowed ids → bias → no end before `min_tokens` →
    repetition, frequency, presence penalty → greedy rows take the likeliest token (the lowest id of equals); the
    others: temperature → min-p → top-k → top-p → draw. A row's token depends on its logits, its request's parameters
    and tokens, its seed and its position, on nothing else.
    """

    def __init__(self, states: SamplingStates) -> None:
        self._states = states

    def __call__(self, logits: Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> SamplerOutput:
        """Sample row i of `logits` (rows, vocab) for the request in `slots[i]`.

        `positions` is the output index of the token to come, 0 for the first. `logits` is not changed; it is worked on
        in float32, or in float64 where it comes so. Raises `ValueError` where the shapes do not agree.
        """
        states = self._states
        if logits.shape != (len(slots), states.vocab_size):
            raise ValueError(
                f"logits {tuple(logits.shape)} are not (slots, vocabulary) {len(slots), states.vocab_size}"
            )
        logits = at_least_float32(logits)
        edited = edit(logits, states, slots, positions)
        best, token_ids = edited.max(dim=-1)
        failures = _failures(best)
        failed = list(failures)
        random = states.random[slots]
        random[failed] = False
        if random.any():
            self._draw(edited, best, token_ids, np.flatnonzero(random), slots, positions)
        token_ids[failed] = NO_TOKEN
        asked = np.flatnonzero(states.num_logprobs[slots] != NO_LOGPROBS).tolist()
        asked = [row for row in asked if row not in failures]
        logprobs: dict[int, TokenLogprobs] = {}
        if asked:
            counts = states.num_logprobs[slots[asked]].tolist()
            logprobs = dict(zip(asked, token_logprobs(logits[asked], token_ids[asked], counts), strict=True))
        return SamplerOutput(token_ids=token_ids, logprobs=logprobs, failures=failures)

    def _draw(
        self,
        logits: Tensor,
        best: Tensor,
        token_ids: Tensor,
        rows: NDArray[np.int64],
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> None:
        """Write drawn tokens for `rows` into `token_ids`."""
        states, device = self._states, logits.device
        for cut in (False, True):
            part = rows[states.truncates[slots[rows]] == cut]
            if not part.size:
                continue
            index = torch.from_numpy(part).to(device)
            chosen = slots[part]
            whole = len(part) == len(slots)
            scores = scaled(
                logits if whole else logits[index], best if whole else best[index], states.temperature[chosen]
            )
            numbers = torch.from_numpy(uniforms(states.seeds[chosen], positions[part])).to(device)
            if cut:
                cuts = Cuts(
                    top_k=torch.from_numpy(states.top_k[chosen]).to(device),
                    top_p=torch.from_numpy(states.top_p[chosen]).to(device),
                    min_p=torch.from_numpy(states.min_p[chosen]).to(device),
                )
                token_ids[index] = pick_cut(scores, cuts, numbers)
            else:
                token_ids[index] = pick(scores.exp_(), numbers)


def _failures(best: Tensor) -> dict[int, str]:
    """Rows without a finite largest logit: max() passes NaN on, so no other look at the logits is needed."""
    finite = torch.isfinite(best)
    if bool(finite.all()):
        return {}
    values = best.tolist()
    return {row: ALL_BARRED if values[row] == -torch.inf else NOT_FINITE for row in (~finite).nonzero()[:, 0].tolist()}
