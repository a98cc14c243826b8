"""Changes to the logits that can change which token is likeliest: rules about single tokens, then penalties."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .states import SamplingStates, TokenRules


def edit(logits: Tensor, states: SamplingStates, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
    """`logits` (rows, vocab) as the requests in `slots` want them; the same tensor where none wants anything.

    `positions` is the output index of the token to come. Order: allowed ids, bias, no end before `min_tokens`,
    repetition, frequency and presence penalty.
    """
    too_early = positions < states.min_tokens[slots]
    rules = _rules_at_work(states, slots, too_early)
    penalised = np.flatnonzero(states.counts.row_of[slots] >= 0)
    if not rules and not penalised.size:
        return logits
    edited = logits.clone()
    for row, rule in rules.items():
        _apply_rule(edited[row], rule, bool(too_early[row]))
    if penalised.size:
        _apply_penalties(edited, states, slots, penalised)
    return edited


def _rules_at_work(
    states: SamplingStates, slots: NDArray[np.int64], too_early: NDArray[np.bool_]
) -> dict[int, TokenRules]:
    """Row → rules, without those that have nothing left to say once `min_tokens` is reached."""
    if not states.rules:
        return {}
    found = {row: rule for row, slot in enumerate(slots.tolist()) if (rule := states.rules.get(slot)) is not None}
    return {
        row: rule for row, rule in found.items() if too_early[row] or rule.allowed_ids is not None or len(rule.bias_ids)
    }


def _apply_rule(row: Tensor, rule: TokenRules, too_early: bool) -> None:
    """Change one row in place. Indices were checked against the vocabulary when the request came."""
    if rule.allowed_ids is not None:
        allowed = row[rule.allowed_ids]
        row.fill_(-math.inf)
        row[rule.allowed_ids] = allowed
    if len(rule.bias_ids):
        row[rule.bias_ids] += rule.bias
    if too_early:
        row[rule.end_ids] = -math.inf


def _apply_penalties(edited: Tensor, states: SamplingStates, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """Change the logits of tokens that occurred, in place.

    Repetition: of tokens in prompt and output (Keskar et al. 2019, arXiv 1909.05858); the others: in the output.
    """
    device = edited.device
    counts = states.counts
    row, slot = torch.from_numpy(rows).to(device), slots[rows]
    count_row = torch.from_numpy(counts.row_of[slot]).to(device)
    place, token = counts.seen[count_row].nonzero(as_tuple=True)

    def of(values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(values[slot]).to(device, edited.dtype)[place]

    logits = edited[row[place], token]
    occurrences = counts.output_counts[count_row[place], token]
    repetition = of(states.repetition_penalty)
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits -= of(states.frequency_penalty) * occurrences + of(states.presence_penalty) * (occurrences > 0)
    edited[row[place], token] = logits
