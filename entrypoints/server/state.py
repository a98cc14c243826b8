"""`ServerState`: what all requests to the server share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...core.engine import AsyncLLMEngine
from ...core.text import ChatTemplate, Tokenizer
from .errors import ApiError
from .settings import ServerSettings


@dataclass(kw_only=True)
class ServerState:
    """Engine, settings, and who is being served. Belongs to the event loop."""

    engine: AsyncLLMEngine | None
    """None where the model gives vectors, not text."""
    tokenizer: Tokenizer
    max_model_len: int
    """Tokens of the longest request."""
    vocab_size: int
    template: ChatTemplate | None
    """None where the model has no chat template."""
    settings: ServerSettings
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    """No new requests: the server is about to end."""
    running: Counter[str] = field(default_factory=Counter[str])
    """Requests under way, by the client's key."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no request is under way."""

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def llm(self) -> AsyncLLMEngine:
        """The engine of a model that gives text."""
        assert self.engine is not None
        return self.engine

    @property
    def model_name(self) -> str:
        """What answers call the model."""
        return self.settings.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` 404 for a model that is not served here."""
        if name is not None and name not in self.settings.model_names:
            known = ", ".join(self.settings.model_names)
            raise ApiError(
                404, f"model: {name[:200]!r} is not served here; known: {known}", param="model", code="model_not_found"
            )

    @cached_property
    def most_characters(self) -> int:
        """No text that is longer can fit: each token would have to be the longest, four times over for normalisers."""
        tokenizer = self.tokenizer
        longest = max((len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)), default=1)
        return 4 * self.max_model_len * longest

    def check_length(self, field: str, text: str) -> None:
        """Raise `ApiError` 400 for a text that need not be tokenised to see that it is too long."""
        if len(text) > self.most_characters:
            problem = f"has {len(text)} characters, far more than fit in {self.max_model_len} tokens"
            raise ApiError(400, f"{field}: {problem}", param=field, code="context_length_exceeded")

    def check_messages(self, messages: Any) -> None:
        """Raise `ApiError` 400 for a conversation that need not be rendered to see that it is too long.

        What is no list of messages is left to the template, which names the place.
        """
        if not isinstance(messages, list):
            return
        contents = [message.get("content") for message in messages if isinstance(message, dict)]
        counts = {
            "messages": len(messages),
            "parts of contents": sum(len(content) for content in contents if isinstance(content, list)),
        }
        problem = ""
        for what, count in counts.items():
            if count > self.max_model_len:
                problem = f"has {count} {what}, more than fit in {self.max_model_len} tokens"
        if not problem and exceeds(messages, self.most_characters):
            problem = (
                f"has more than {self.most_characters} characters, far more than fit in {self.max_model_len} tokens"
            )
        if problem:
            raise ApiError(400, f"messages: {problem}", param="messages", code="context_length_exceeded")

    def check_room(self, completions: int) -> None:
        """Raise `ApiError`: 503 where `completions` more would wait behind too many, 400 where they never fit."""
        limits, engine = self.settings, self.llm
        if completions > limits.max_queued_requests:
            problem = f"asks for {completions} answers; this server queues {limits.max_queued_requests} at most"
            raise ApiError(400, f"prompt: {problem}", param="prompt", code="invalid_value")
        queued, tokens = engine.num_queued, engine.num_queued_tokens
        if queued and queued + completions > limits.max_queued_requests:
            raise self.busy(503, f"{queued} answers are waiting already", "queue_full")
        if limits.max_queued_tokens is not None and tokens >= limits.max_queued_tokens:
            raise self.busy(503, f"prompts of {tokens} tokens are waiting already", "queue_full")

    @contextmanager
    def served(self, key: str) -> Iterator[None]:
        """Around one request of a client. Raises `ApiError` where it cannot be taken now."""
        if self.draining:
            raise self.busy(503, "the server is going down", "shutting_down")
        most = self.settings.max_requests_per_key
        if most is not None and self.running[key] >= most:
            raise self.busy(429, f"{most} requests with this key are under way", "too_many_requests")
        self.running[key] += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.running[key] -= 1
            if not self.running[key]:
                del self.running[key]
            if not self.running:
                self.idle.set()

    def busy(self, status: int, problem: str, code: str) -> ApiError:
        """The answer to who may come again."""
        return ApiError(status, f"{problem}; try again later", code=code, retry_after=self.settings.retry_after)


def exceeds(value: Any, most: int) -> bool:
    """Whether the texts of some JSON have more than `most` characters, each item of a list or object counted as one."""
    found, left = 0, [value]
    while left and found <= most:
        item = left.pop()
        if isinstance(item, (str, list, dict)):
            found += len(item)
        if isinstance(item, (list, dict)):
            left.extend(item.values() if isinstance(item, dict) else item)
    return found > most
