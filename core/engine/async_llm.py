"""`AsyncLLMEngine`: prompts in, texts out, many at a time, for callers on an event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any

from ..errors import EngineClosedError, EngineDeadError, HeadstockError, InvalidInput
from ..outputs import OutputKind, RequestOutput
from ..params import SamplingParams
from .client import AsyncEngineClient
from .inputs import InputProcessor, PreparedRequest
from .mailbox import Mailbox
from .observer import Observer
from .outputs import OutputProcessor
from .prompts import Prompt

logger = logging.getLogger(__name__)

CHUNK = 128
"""Outputs of one step that are made into text before others on the event loop get their turn."""
LONGEST_DEADLINE = 10**9
"""Seconds: thirty years."""
SHORT_TEXT = 4096
"""Characters that are tokenised at once; longer texts go to a thread, as they would hold everybody up."""


class RequestStream:
    """The outputs of one request, in order, to the last."""

    def __init__(self, request: PreparedRequest, mailbox: Mailbox, forget: Callable[[], None]) -> None:
        self.request = request
        """What was asked, with the prompt's token ids."""
        self._mailbox = mailbox
        self._forget: Callable[[], None] | None = forget
        self._finished = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        """Raises `EngineDeadError` where the engine died before the request's end."""
        if self._finished or self._forget is None:
            raise StopAsyncIteration
        output = await self._mailbox.get()
        self._finished = output.finished
        return output

    def close(self) -> None:
        """Nobody reads on: the request is aborted unless it is finished."""
        if self._forget is not None:
            forget, self._forget = self._forget, None
            forget()


class AsyncLLMEngine:
    """Front end over a client: one task reads what the engine gives and hands it to the requests' readers.

    Belongs to one event loop, from the first request on. A slow reader holds back nobody else, and costs no more memory
    than its answer.
    """

    def __init__(self, client: AsyncEngineClient, inputs: InputProcessor, observer: Observer | None = None) -> None:
        """`observer` is told what each step brought."""
        self.client = client
        self.inputs = inputs
        self._outputs = OutputProcessor(inputs.tokenizer, observer)
        self._mailboxes: dict[str, Mailbox] = {}
        """By the caller's request id."""
        self._reader: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        """Aborts on their way: a caller that is cancelled cannot wait for them."""
        self._dead: EngineDeadError | None = None
        self._died = asyncio.Event()

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that somebody reads, queued ones included."""
        return tuple(self._mailboxes)

    @property
    def num_queued(self) -> int:
        """Completions that have no token yet."""
        return self._outputs.num_queued

    @property
    def num_queued_tokens(self) -> int:
        """Tokens of their prompts, each prompt counted for every completion."""
        return self._outputs.num_queued_tokens

    async def died(self) -> EngineDeadError:
        """Waits for the engine's end, and says why."""
        self._watch()
        await self._died.wait()
        assert self._dead is not None
        return self._dead

    async def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        output_kind: OutputKind = "cumulative",
    ) -> RequestStream:
        """Check and queue one prompt; its outputs, to be closed by whoever reads them.

        After `deadline` seconds the request ends with what it has, and reason ``abort``. Raises `InvalidInput` or
        `CapacityError` with nothing kept of it, and `EngineDeadError`.
        """
        _check_deadline(deadline)
        loop = asyncio.get_running_loop()
        arrival, due = time.monotonic(), loop.time() + (deadline or 0.0)
        request = self.inputs.prepare(
            prompt,
            params,
            priority=priority,
            request_id=request_id,
            token_ids=await self._tokenize(prompt),
            arrival_time=arrival,
        )
        mailbox = self._register(request, output_kind)
        timer = None
        if deadline is not None:
            timer = loop.call_at(due, self._expire, request.request_id, deadline)
        stream = RequestStream(request, mailbox, lambda: self._forget(request, timer))
        try:
            for one in request.requests:
                await self.client.add_request(one)
        except HeadstockError:
            self._withdraw(request)
            stream.close()
            raise
        except BaseException:
            stream.close()
            raise
        return stream

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        output_kind: OutputKind = "cumulative",
    ) -> AsyncGenerator[RequestOutput]:
        """The outputs of one prompt, as `add_request` says; the last one has `finished`.

        Leaving the iterator early aborts the request, as does cancellation; close it with `contextlib.aclosing` to have
        that at once.
        """
        stream = await self.add_request(
            prompt, params, request_id=request_id, priority=priority, deadline=deadline, output_kind=output_kind
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def abort(self, request_ids: Iterable[str]) -> None:
        """End requests in whatever state they are; their readers get a last output. Unknown ids are ignored."""
        self._end(request_ids, None)

    async def close(self) -> None:
        """End everything; readers that still wait get `EngineDeadError`."""
        self._die(EngineClosedError())
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await asyncio.gather(*self._errands, return_exceptions=True)
        await asyncio.to_thread(self.client.close)  # it waits for the running step

    async def _tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        if prompt.text is None or len(prompt.text) <= SHORT_TEXT:
            return self.inputs.tokenize(prompt)
        return await asyncio.to_thread(self.inputs.tokenize, prompt)

    def _register(self, request: PreparedRequest, kind: OutputKind) -> Mailbox:
        """Be ready for its outputs before the engine hears of it."""
        if self._dead is not None:
            raise self._dead
        self._outputs.add(request, kind)
        mailbox = self._mailboxes[request.request_id] = Mailbox(kind)
        self._watch()
        return mailbox

    def _withdraw(self, request: PreparedRequest) -> None:
        """Refused, so it never was one that could end: nobody counts it."""
        ids = self._outputs.engine_ids((request.request_id,))
        self._outputs.drop(ids)
        self._abort_in_engine(ids)

    def _watch(self) -> None:
        """Read what the engine gives, from now on."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="headstock-outputs")

    def _forget(self, request: PreparedRequest, timer: asyncio.TimerHandle | None) -> None:
        """The reader is done with it, or gone."""
        if timer is not None:
            timer.cancel()
        del self._mailboxes[request.request_id]
        self._end((request.request_id,), None)

    def _expire(self, request_id: str, deadline: float) -> None:
        self._end((request_id,), f"not finished within its deadline of {deadline:g} s")

    def _end(self, request_ids: Iterable[str], reason: str | None) -> None:
        outputs, left = self._outputs.end(request_ids, reason)
        self._deliver(outputs)
        self._abort_in_engine(left)

    def _abort_in_engine(self, engine_ids: list[str]) -> None:
        if engine_ids and self._dead is None:
            self._send(self.client.abort_requests(engine_ids))

    def _send(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("an abort did not reach the engine: %s", error)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is not None:
                mailbox.put(output)

    async def _read(self) -> None:
        """Bring the engine's news to the readers, until it dies."""
        try:
            while True:
                outputs = await self.client.get_outputs()
                for start in range(0, len(outputs), CHUNK):
                    news, stopped = self._outputs.process(outputs[start : start + CHUNK])
                    self._deliver(news)
                    self._abort_in_engine(stopped)
                    if start + CHUNK < len(outputs):
                        await asyncio.sleep(0)
        except EngineDeadError as error:
            self._die(error)
        except Exception as error:
            logger.exception("the front end failed")
            self._die(EngineDeadError(f"the front end failed: {type(error).__name__}: {error}"))

    def _die(self, error: EngineDeadError) -> None:
        """Everybody who waits, and who comes, gets `error`."""
        if self._dead is None:
            self._dead = error
            self._died.set()
            for mailbox in self._mailboxes.values():
                mailbox.fail(error)


def _check_deadline(deadline: float | None) -> None:
    if deadline is None:
        return
    if isinstance(deadline, bool) or not isinstance(deadline, (int, float)):
        raise InvalidInput("deadline", f"must be seconds, not {deadline!r}")
    if not 0 < deadline <= LONGEST_DEADLINE:
        raise InvalidInput("deadline", f"must be seconds above 0 and at most {LONGEST_DEADLINE}, not {deadline!r}")
