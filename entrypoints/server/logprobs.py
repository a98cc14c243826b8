"""Log probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.outputs import Logprob

Position = dict[int, Logprob]
FLOOR = -9999.0
"""Stands for a token that cannot be: JSON has no infinity."""


def chat_logprobs(positions: Sequence[Position], count: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat: each token, with the `count` likeliest in its place."""
    return {"content": [_chat_position(position, count) for position in positions], "refusal": None}


def _chat_position(position: Position, count: int) -> dict[str, Any]:
    ranked = sorted((e for e in position.values() if e.rank <= count), key=lambda e: e.rank)[:count]
    return {**_chat_entry(next(iter(position.values()))), "top_logprobs": [_chat_entry(e) for e in ranked]}


def _chat_entry(entry: Logprob) -> dict[str, Any]:
    return {"token": entry.decoded_token, "logprob": _finite(entry.logprob), "bytes": list(entry.bytes)}


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, built as its tokens come: four lists of equal length."""

    def __init__(self) -> None:
        self._offset = 0

    def push(self, token_ids: Sequence[int], positions: Sequence[Position | None], first: str = "") -> dict[str, Any]:
        """The lists for further tokens. `first` is the text of a prompt's first token, which has no position."""
        tokens: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, position in zip(token_ids, positions, strict=True):
            entry = position[token_id] if position else None
            tokens.append(first if entry is None else _name(entry))
            logprobs.append(None if entry is None else _finite(entry.logprob))
            tops.append({_name(e): _finite(e.logprob) for e in reversed(position.values())} if position else None)
            offsets.append(self._offset)
            self._offset += len(first if entry is None else entry.decoded_token)
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _name(entry: Logprob) -> str:
    """The token's text, or its bytes where they are only part of a character."""
    if entry.decoded_token or not entry.bytes:
        return entry.decoded_token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)


def prompt_logprobs(positions: Sequence[Position | None]) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each prompt token, entries by token id."""
    return [
        None
        if position is None
        else {
            str(token_id): {"logprob": _finite(e.logprob), "rank": e.rank, "decoded_token": e.decoded_token}
            for token_id, e in position.items()
        }
        for position in positions
    ]


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR)
