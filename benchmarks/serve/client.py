"""One streamed request to a server, with the time of everything that comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import aiohttp

from ...core.errors import HeadstockError
from ..engine.metrics import Timeline

LONGEST_LINE = 2**22
"""Bytes of one event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which server, and how it is asked."""

    base_url: str
    """Without ``/v1``."""
    model: str
    chat: bool = False
    """Chats instead of completions."""
    api_key: str | None = None
    ignore_eos: bool = True
    """Ask for answers of exactly the wanted length, by a field that vLLM, SGLang and Headstock know."""
    temperature: float = 0.0
    timeout: float = 600.0
    """Seconds a request may take."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of the workload."""

    prompt: list[int] | str
    """Token ids for completions, text for chats."""
    num_prompt_tokens: int
    output_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one request."""

    sent: float
    """Seconds since the start of the run."""
    timeline: Timeline | None = None
    """None where it failed."""
    num_cached_tokens: int = 0
    error: str = ""

    @property
    def ended(self) -> float | None:
        """Seconds since the start of the run at its last token."""
        return None if self.timeline is None else self.sent + self.timeline.e2el


@asynccontextmanager
async def session(target: Target) -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as there are requests."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    limits = aiohttp.ClientTimeout(total=target.timeout)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        target.base_url, connector=connector, timeout=limits, headers=headers, read_bufsize=LONGEST_LINE
    ) as made:
        yield made


async def find_model(client: aiohttp.ClientSession, target: Target) -> str:
    """The first model that the server names. Raises `HeadstockError` where there is no such server."""
    try:
        async with client.get("/v1/models") as response:
            document = await response.json()
            if response.status != 200:
                raise HeadstockError(f"{target.base_url}/v1/models answers {response.status}: {str(document)[:300]}")
            return document["data"][0]["id"]
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        problem = f"{target.base_url} is no server with OpenAI's interface: {_words(error)}"
        raise HeadstockError(problem) from error


async def ask(client: aiohttp.ClientSession, target: Target, one: Ask, start: float) -> Outcome:
    """Send `one` and read its stream to the end; `start` is the run's, by `perf_counter`."""
    began = perf_counter()
    sent = began - start
    times: list[float] = []
    usage: Mapping[str, Any] = {}
    try:
        async with client.post(target.path, json=_body(target, one)) as response:
            if response.status != 200:
                return Outcome(sent=sent, error=f"status {response.status}: {(await response.text())[:300]}")
            async for event in _events(response.content):
                if "error" in event:
                    return Outcome(sent=sent, error=str(event["error"])[:300])
                usage = event.get("usage") or usage
                if any(_brings_text(choice) for choice in event.get("choices", ())):
                    times.append(perf_counter() - began)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Outcome(sent=sent, error=_words(error))
    count = usage.get("completion_tokens", len(times))
    if not times:
        return Outcome(sent=sent, error="the stream ended without text")
    if target.ignore_eos and count != one.output_len:
        return Outcome(sent=sent, error=f"gave {count} tokens where {one.output_len} were asked for")
    details = usage.get("prompt_tokens_details") or {}
    prompt = usage.get("prompt_tokens", one.num_prompt_tokens)
    return Outcome(
        sent=sent,
        timeline=Timeline(num_prompt_tokens=prompt, token_times=tuple(times), num_tokens=count),
        num_cached_tokens=details.get("cached_tokens") or 0,
    )


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Payloads of server-sent events, `[DONE]` left out."""
    async for line in content:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _brings_text(choice: Mapping[str, Any]) -> bool:
    """Whether this piece says something; the first of a chat is only a role."""
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))


def _body(target: Target, one: Ask) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": target.model,
        "temperature": target.temperature,
        "max_tokens": one.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.chat:
        body["messages"] = [{"role": "user", "content": one.prompt}]
    else:
        body["prompt"] = one.prompt
    if target.ignore_eos:
        body["ignore_eos"] = True
    return body


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
