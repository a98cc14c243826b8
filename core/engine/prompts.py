"""What a caller may hand in as a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidInput
from ..text import ChatTemplate, Tokenizer

KEYS = ("prompt", "prompt_token_ids", "cache_salt", "session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, as text or as token ids."""

    text: str | None = None
    """Tokenised unless `token_ids` are given, too."""
    token_ids: tuple[int, ...] | None = None
    """Taken as they are, without special tokens added."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    session: str | None = None
    """Of several engines, one serves all requests of a session."""


def read_prompt(value: Any) -> Prompt:
    """A prompt from a string, a list of token ids, a `Prompt`, or a mapping with `prompt` or `prompt_token_ids`.

    Raises `InvalidInput` naming what is wrong.
    """
    if isinstance(value, Prompt):
        return value
    if isinstance(value, str):
        return Prompt(text=_text(value))
    if isinstance(value, Mapping):
        return _read_mapping(value)
    return Prompt(token_ids=_token_ids(value))


def read_prompts(value: Any) -> list[Prompt]:
    """One prompt or a list of them; a list of integers is one prompt of token ids."""
    if isinstance(value, (str, Mapping, Prompt)):
        return [read_prompt(value)]
    if not isinstance(value, Sequence):
        raise InvalidInput("prompts", f"must be text, token ids or a list of them, not {type(value).__name__}")
    if value and all(isinstance(item, int) for item in value):
        return [read_prompt(value)]
    return [read_prompt(item) for item in value]


def chat_prompt(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **options: Any
) -> Prompt:
    """The prompt of one conversation; `options` are those of `ChatTemplate.render`, whose errors it raises."""
    text = template.render(messages, **options)
    return Prompt(text=_text(text), token_ids=tuple(tokenizer.encode(text, add_special_tokens=False)))


def _read_mapping(value: Mapping[str, Any]) -> Prompt:
    for key in value:
        if key not in KEYS:
            raise InvalidInput("prompt", f"key {key!r} is not known; known are {', '.join(KEYS)}")
    text, ids, salt, session = (value.get(key) for key in KEYS)
    if (text is None) == (ids is None):
        raise InvalidInput("prompt", "give either prompt or prompt_token_ids")
    for name, word in (("cache_salt", salt), ("session", session)):
        if word is not None and not isinstance(word, str):
            raise InvalidInput(name, f"must be text, not {type(word).__name__}")
    if text is not None and not isinstance(text, str):
        raise InvalidInput("prompt", f"must be text, not {type(text).__name__}")
    return Prompt(
        text=None if text is None else _text(text),
        token_ids=None if ids is None else _token_ids(ids),
        cache_salt=salt,
        session=session,
    )


def _text(value: str) -> str:
    if not value:
        raise InvalidInput("prompt", "is empty; give at least one token")
    return value


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidInput("prompt", f"must be text or a list of token ids, not {type(value).__name__}")
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int):
            raise InvalidInput("prompt_token_ids", f"must hold integers, not {token!r}")
    if not value:
        raise InvalidInput("prompt_token_ids", "is empty; give at least one token")
    return tuple(value)
