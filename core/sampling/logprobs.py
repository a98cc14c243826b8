"""Log probabilities of tokens, from raw logits: of sampled tokens and of a prompt's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..outputs import TokenLogprobs
from .order import at_least_float32, largest

MAX_ELEMENTS = 2**23
"""Logits worked on at a time: bounds temporary memory for long prompts."""


def token_logprobs(logits: Tensor, token_ids: Tensor, counts: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """For each row of `logits` (rows, vocab), the token in `token_ids` (rows,) and the `counts` likeliest ones.

    A count of -1 is the whole vocabulary, 0 the token alone. Equal logits are ordered by id; a token's rank is one more
    than the number of larger logits. NaN logits give NaN.
    """
    found: dict[int, TokenLogprobs] = {}
    step = max(1, MAX_ELEMENTS // logits.shape[-1])
    for count in sorted(set(counts)):
        rows = [row for row, wanted in enumerate(counts) if wanted == count]
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found.update(zip(part, _same_count(logits[part], token_ids[part], count), strict=True))
    return tuple(found[row] for row in range(len(counts)))


def prompt_logprobs(logits: Tensor, targets: Tensor, k: int) -> tuple[TokenLogprobs, ...]:
    """For a chunk of a prompt: row i of `logits` (tokens, vocab) predicts `targets[i]`, the prompt's next token.

    `k` as in `SamplingParams.prompt_logprobs`. Chunks give the entries that the whole prompt would.
    """
    return token_logprobs(logits, targets, [k] * len(targets))


def _same_count(logits: Tensor, token_ids: Tensor, count: int) -> list[TokenLogprobs]:
    logits = at_least_float32(logits)
    chosen = logits.gather(-1, token_ids[:, None])
    ranks = (logits > chosen).sum(-1).add_(1)
    values, ids = largest(logits, logits.shape[-1] if count < 0 else count)
    values = torch.cat((chosen, values), dim=-1) - logits.logsumexp(-1, keepdim=True)
    ids = torch.cat((token_ids[:, None], ids), dim=-1)
    return [
        TokenLogprobs(token_ids=tuple(row_ids), logprobs=tuple(row_values), rank=rank)
        for row_ids, row_values, rank in zip(ids.tolist(), values.tolist(), ranks.tolist(), strict=True)
    ]
