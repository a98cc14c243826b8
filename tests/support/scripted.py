"""An engine whose model says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headstock.core.engine import EngineCore
from headstock.core.text import Tokenizer

Script = Mapping[tuple[int, ...], Sequence[int]]
"""Token ids of a prompt → those of its answer; the last one goes on for ever."""


def follow(core: EngineCore, script: Script) -> None:
    """Let requests with these prompts get these tokens. All others get what the model gives."""
    execute, parts = core.worker.execute_model, dict[str, Sequence[int]]()
    said: dict[str, int] = {}

    def execute_model(scheduled: Any) -> Any:
        for new in scheduled.new_requests:
            answer = script.get(new.token_ids[: new.num_prompt_tokens])
            if answer is not None:
                parts[new.request_id] = answer
                said[new.request_id] = len(new.token_ids) - new.num_prompt_tokens
        result = execute(scheduled)
        sampled = dict(result.sampled_token_ids)
        for request_id in sampled.keys() & parts.keys():
            answer = parts[request_id]
            sampled[request_id] = (answer[min(said[request_id], len(answer) - 1)],)
            said[request_id] += 1
        return replace(result, sampled_token_ids=sampled)

    core.worker.execute_model = execute_model  # pyright: ignore[reportAttributeAccessIssue]


def spell(tokenizer: Tokenizer, *pieces: str | bytes) -> tuple[int, ...]:
    """One token a piece where there is such a token, else one a byte."""
    known = {data: i for i in range(tokenizer.vocab_size) if (data := tokenizer.token_bytes(i))}
    ids: list[int] = []
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else piece.encode()
        ids += [known[data]] if data in known else [known[bytes([byte])] for byte in data]
    return tuple(ids)
