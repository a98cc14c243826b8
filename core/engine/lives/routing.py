"""Which of several engines serves a request: `Balance` keeps the books and decides."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from ...scheduler.output import EngineCoreOutput, EngineRequest

CHUNK = 64
"""Tokens of a prompt that are looked at as one."""
REMEMBERED = 65536
"""Chunks and sessions of which the engine is known; those that were not used for longest are forgotten."""
LEAST_SLACK = 4
"""Requests that an engine may have more than another, and still be taken for what it has cached."""


class Balance:
    """A session's engine first; then the one that has the prompt's beginning in its cache; else the least loaded one.

    Load is requests, then prompt tokens. A cached beginning counts only while its engine has not a quarter (and four
    requests) more to do than the least loaded. Only the books of who got what are looked at, not the engines' caches:
    being wrong costs time and nothing else. Thread-safe.
    """

    def __init__(self, num_engines: int) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, tuple[int, int]] = {}
        """Request id → its engine, and its prompt's tokens."""
        self._requests = [0] * num_engines
        self._tokens = [0] * num_engines
        self._chunks: OrderedDict[int, int] = OrderedDict()
        self._sessions: OrderedDict[str, int] = OrderedDict()

    def place(self, request: EngineRequest) -> int:
        """Take a request in; the engine that is to serve it."""
        chunks = list(_chunks(request))
        with self._lock:
            engine = self._choose(request.session, chunks)
            for key in chunks:
                _remember(self._chunks, key, engine)
            if request.session is not None:
                _remember(self._sessions, request.session, engine)
            self._owners[request.request_id] = (engine, len(request.prompt_token_ids))
            self._requests[engine] += 1
            self._tokens[engine] += len(request.prompt_token_ids)
            return engine

    def release(self, outputs: Iterable[EngineCoreOutput]) -> None:
        """Take note of the requests that end with these news."""
        with self._lock:
            for output in outputs:
                if output.finish_reason is not None:
                    self._drop(output.request_id)

    def drop(self, request_ids: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Forget requests; engine → those that it has."""
        found: dict[int, tuple[str, ...]] = {}
        with self._lock:
            for request_id in request_ids:
                if (engine := self._drop(request_id)) is not None:
                    found[engine] = (*found.get(engine, ()), request_id)
        return found

    def _drop(self, request_id: str) -> int | None:
        engine, tokens = self._owners.pop(request_id, (None, 0))
        if engine is not None:
            self._requests[engine] -= 1
            self._tokens[engine] -= tokens
        return engine

    def _choose(self, session: str | None, chunks: Sequence[int]) -> int:
        if session is not None and session in self._sessions:
            return self._sessions[session]
        least = min(range(len(self._requests)), key=lambda i: (self._requests[i], self._tokens[i]))
        holder = least
        for key in chunks:
            if key not in self._chunks:
                break
            holder = self._chunks[key]
        slack = max(LEAST_SLACK, self._requests[least] // 4)
        return holder if self._requests[holder] <= self._requests[least] + slack else least


def _chunks(request: EngineRequest) -> Iterator[int]:
    """A key for each beginning of the prompt that ends with a whole chunk."""
    tokens = request.prompt_token_ids
    key = hash(request.cache_salt)
    for end in range(CHUNK, len(tokens) + 1, CHUNK):
        key = hash((key, tokens[end - CHUNK : end]))
        yield key


def _remember(known: OrderedDict[int, int] | OrderedDict[str, int], key: int | str, engine: int) -> None:
    known[key] = engine  # type: ignore[index]
    known.move_to_end(key)  # type: ignore[arg-type]
    if len(known) > REMEMBERED:
        known.popitem(last=False)
