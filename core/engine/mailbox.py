"""`Mailbox`: where the news of one request wait for its reader, who may be slow, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ..outputs import CompletionOutput, OutputKind, RequestOutput

MERGE_AT = 64
"""Deltas that wait before they are put together, so that a reader who never comes costs the answer and no more."""


class Mailbox:
    """One request's outputs. The writer never waits: what is not read in time is put together.

    After vLLM's `RequestOutputCollector`. Belongs to one event loop.
    """

    def __init__(self, kind: OutputKind) -> None:
        self._merge = kind == "delta"
        self._waiting: list[RequestOutput] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Deltas add up; any other output replaces the one before it."""
        if not self._merge:
            self._waiting.clear()
        elif len(self._waiting) >= MERGE_AT:
            self._waiting = [merge_deltas(self._waiting)]
        self._waiting.append(output)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Let the reader's `get` raise `error`, after what is there."""
        self._error = error
        self._news.set()

    async def get(self) -> RequestOutput:
        """What has come since the last call; waits where nothing has."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        waiting, self._waiting = self._waiting, []
        return waiting[0] if len(waiting) == 1 else merge_deltas(waiting)


def merge_deltas(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """One delta that says what several in a row say."""
    by_index: dict[int, list[CompletionOutput]] = {}
    for output in outputs:
        for completion in output.outputs:
            by_index.setdefault(completion.index, []).append(completion)
    scored = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    return replace(
        outputs[-1],
        outputs=tuple(_joined(parts) for _, parts in sorted(by_index.items())),
        prompt_logprobs=scored[0] if scored else None,
    )


def _joined(parts: Sequence[CompletionOutput]) -> CompletionOutput:
    """The last of one completion's deltas, with the text and tokens of all."""
    last = parts[-1]
    scored = last.logprobs is not None
    return replace(
        last,
        text="".join([part.text for part in parts]),
        token_ids=tuple([token for part in parts for token in part.token_ids]),
        logprobs=tuple([entry for part in parts for entry in part.logprobs or ()]) if scored else None,
    )
