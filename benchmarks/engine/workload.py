"""What engines are asked: prompts as token ids, and how long each answer is to be."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import InvalidInput
from ...core.text import Tokenizer

SHORTEST = 4
"""Conversations with a prompt or an answer of fewer tokens are left out, as vLLM does; and those with longer prompts
or more tokens in all than the next two say."""
LONGEST_PROMPT, LONGEST = 1024, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt."""

    token_ids: tuple[int, ...]
    output_len: int
    """Tokens of the answer, whatever the model would like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a turn consists of."""

    name: str
    """In words, with what it depends on: two of equal name ask the same."""
    requests: tuple[Request, ...]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.output_len for request in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Sizes of a random workload."""

    input_len: int
    """Tokens a prompt, the shared prefix not counted."""
    output_len: int
    range_ratio: float = 0.0
    """Lengths are drawn evenly from (1 - this) to (1 + this) times the above."""
    prefix_len: int = 0
    """Tokens that all prompts begin with."""

    def __post_init__(self) -> None:
        if not 0 <= self.range_ratio < 1:
            raise InvalidInput("range_ratio", f"must be at least 0 and below 1, not {self.range_ratio}")

    def check(self, limit: int) -> None:
        """Raise `InvalidInput` where a request can be longer than `limit` tokens."""
        longest = self.prefix_len + sum(int(n * (1 + self.range_ratio)) for n in (self.input_len, self.output_len))
        if longest > limit:
            raise InvalidInput("input_len", f"a request of {longest} tokens is more than the model's {limit}")

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Lengths of a prompt and its answer, at least one token each."""
        low, high = 1 - self.range_ratio, 1 + self.range_ratio
        return tuple(max(1, rng.randint(int(n * low), int(n * high))) for n in (self.input_len, self.output_len))  # pyright: ignore[reportReturnType]


def random_workload(lengths: Lengths, count: int, *, tokenizer: Tokenizer, vocab_size: int, seed: int) -> Workload:
    """`count` prompts of random ordinary tokens."""
    rng = random.Random(seed)
    ids = [i for i in range(min(vocab_size, tokenizer.vocab_size)) if i not in tokenizer.special_token_ids]
    prefix = tuple(rng.choices(ids, k=lengths.prefix_len))
    drawn = [lengths.draw(rng) for _ in range(count)]
    words = f"random {count} x {lengths.input_len}+{lengths.output_len}"
    if lengths.range_ratio:
        words += f" ±{lengths.range_ratio:.0%}"
    if lengths.prefix_len:
        words += f" after {lengths.prefix_len} shared"
    return Workload(
        name=f"{words}, seed {seed}",
        requests=tuple(
            Request(token_ids=(*prefix, *rng.choices(ids, k=prompt)), output_len=answer) for prompt, answer in drawn
        ),
    )


def sharegpt_workload(
    file: str, count: int, *, tokenizer: Tokenizer, output_len: int | None, limit: int = LONGEST, seed: int
) -> Workload:
    """The first two turns of `count` conversations of a file in ShareGPT's format, in an order that `seed` shuffles.

    An answer is as long as the one in the file, or `output_len` tokens. Raises `InvalidInput` where the file is another
    or has too few conversations of ordinary length, and of at most `limit` tokens.
    """
    pairs = list(_pairs(file))
    random.Random(seed).shuffle(pairs)
    requests: list[Request] = []
    for prompt, answer in pairs:
        if len(requests) == count:
            break
        ids = tuple(tokenizer.encode(prompt))
        length = len(tokenizer.encode(answer, add_special_tokens=False)) if output_len is None else output_len
        if (
            SHORTEST <= len(ids) <= LONGEST_PROMPT
            and len(ids) + length <= min(LONGEST, limit)
            and (output_len or length >= SHORTEST)
        ):
            requests.append(Request(token_ids=ids, output_len=length))
    if len(requests) < count:
        raise InvalidInput("num_prompts", f"{count} are asked for; {file} has {len(requests)} of ordinary length")
    words = f"{Path(file).name} {count}" + (f" +{output_len}" if output_len else "")
    return Workload(name=f"{words}, seed {seed}", requests=tuple(requests))


def _pairs(file: str) -> Iterator[tuple[str, str]]:
    """Prompt and answer of each conversation that begins with two turns."""
    try:
        document = json.loads(Path(os.path.expanduser(file)).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput("dataset", f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(document, list):
        raise InvalidInput("dataset", f"{file} must be a list of conversations, as ShareGPT has it")
    for entry in document:
        turns: Any = entry.get("conversations", entry.get("conversation")) if isinstance(entry, Mapping) else None
        texts = [_text(turn) for turn in turns[:2]] if isinstance(turns, Sequence) else []
        if len(texts) == 2 and all(isinstance(text, str) and text for text in texts):
            yield str(texts[0]), str(texts[1])


def _text(turn: Any) -> Any:
    return turn.get("value", turn.get("content")) if isinstance(turn, Mapping) else None
