"""Answers that take their time: given up as soon as the client is gone, and streamed as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...core.engine import RequestStream
from ...core.outputs import RequestOutput
from .errors import ApiError
from .visit import SCOPE_KEY

T = TypeVar("T")
GONE = 499
"""Status in logs and metrics of a request whose client left."""
DONE = b"data: [DONE]\n\n"
LINE_ENDS = {"\u0085": r"\u0085", "\u2028": r"\u2028", "\u2029": r"\u2029"}
"""Those of Unicode's that JSON leaves as they are: clients that split a stream as Python's `splitlines` would cut."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves: raises `ClientGone` then.

    Web frameworks do not cancel handlers whose client left, so a request would go on to its last token.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events from an iterator of their payloads, each list of which goes out in one piece.

    An `ApiError` on the way becomes an event, since the status has been sent. Whatever ends the stream closes the
    iterator and then calls `close`.
    """

    def __init__(self, events: AsyncIterator[list[dict[str, Any]]], close: Callable[[], None]) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            scope[SCOPE_KEY].notes["status"] = GONE
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = _body(send)
        try:
            async for payloads in self._events:
                await body(b"".join([b"data: " + encode(payload) + b"\n\n" for payload in payloads]))
        except ApiError as error:
            await body(b"data: " + json.dumps(error.body()).encode() + b"\n\n")
        await body(DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(send: Send) -> Callable[[bytes], Awaitable[None]]:
    return lambda data: send({"type": "http.response.body", "body": data, "more_body": True})


def encode(document: Any) -> bytes:
    """JSON in UTF-8, as small as it gets, on one line for whatever a client takes for the end of one."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), check_circular=False)
    for character, escaped in LINE_ENDS.items():
        text = text.replace(character, escaped)
    return text.encode()


async def merged(streams: Sequence[RequestStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """The outputs of several requests as they come, each with its stream's place."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    waiting = {asyncio.ensure_future(_next(stream)): place for place, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = waiting.pop(task)
                output = task.result()
                yield place, output
                if not output.finished:
                    waiting[asyncio.ensure_future(_next(streams[place]))] = place
    finally:
        for task in waiting:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*waiting, return_exceptions=True)


async def _next(stream: RequestStream) -> RequestOutput:
    return await anext(aiter(stream))
