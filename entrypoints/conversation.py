"""`Conversation`: what was said so far, and how it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.engine import Prompt
from .llm import LLM


class Conversation:
    """Messages with one model, after a system message where there is one."""

    def __init__(self, llm: LLM, *, system: str | None = None, chat_template: str | None = None) -> None:
        """`chat_template` is a Jinja template instead of the model's own."""
        self._llm = llm
        self._template = chat_template
        self._system: tuple[Mapping[str, Any], ...] = () if system is None else ({"role": "system", "content": system},)
        self._turns: list[Mapping[str, Any]] = []

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """All of them, oldest first."""
        return (*self._system, *self._turns)

    def prompt(self, text: str) -> Prompt:
        """For the answer to `text`, should it be said now. Raises `InvalidInput` where the template refuses it."""
        return self._llm.chat_prompt([*self.messages, _user(text)], chat_template=self._template)

    def add(self, text: str, answer: str) -> None:
        """Somebody said `text` and was answered."""
        self._turns += [_user(text), {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._turns.clear()


def _user(text: str) -> Mapping[str, Any]:
    return {"role": "user", "content": text}
