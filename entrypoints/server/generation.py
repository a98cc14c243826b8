"""How an HTTP request for answers is served, whatever its answers look like: `respond`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from ...core.engine import Prompt, RequestStream
from ...core.errors import HeadstockError
from ...core.outputs import RequestOutput
from ...core.params import SamplingParams
from .errors import ApiError, api_error
from .schemas import GenerationSchema
from .state import ServerState
from .streams import EventStream, encode, merged, unless_gone
from .usage import Usage
from .visit import visit_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be computed for one HTTP request."""

    id: str
    """Unique; the ids of its prompts in the engine begin with it."""
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    body: GenerationSchema
    show_answers: bool = True
    """False where only the prompt is wanted back, scored."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of the engine's fields in this kind of request, where they differ."""


class AnswerFormat(Protocol):
    """The shape of answers, of one kind of endpoint."""

    def document(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The whole answer, without usage; `outputs` are final, one a prompt."""
        ...

    def opening(self) -> list[dict[str, Any]]:
        """Chunks that begin a stream."""
        ...

    def chunks(self, place: int, output: RequestOutput) -> list[dict[str, Any]]:
        """Chunks for a delta of the prompt at `place`, without usage."""
        ...

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk that carries the usage at a stream's end."""
        ...


async def respond(request: Request, state: ServerState, job: Job, shape: AnswerFormat) -> Response:
    """Serve `job`. Raises `ApiError` before anything is sent; later failures become an event of the stream."""
    ignored = _printable(", ".join(job.body.ignored()))
    with ExitStack() as stack:
        stack.enter_context(state.served(visit_of(request).client))
        if not job.body.stream:
            document = await unless_gone(request.receive, _whole(request, state, job, shape, stack))
            response = Response(encode(document), media_type="application/json")
        else:
            streams = await unless_gone(request.receive, _start(state, job, stack))
            response = EventStream(_events(request, job, shape, streams), stack.pop_all().close)
    if ignored:
        response.headers["X-Ignored-Fields"] = ignored
    return response


def _printable(words: str) -> str:
    """What a client has said, as it may stand in a header."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in words[:500])


async def _start(state: ServerState, job: Job, stack: ExitStack) -> list[RequestStream]:
    """Queue all prompts or none; `stack` closes them."""
    state.check_room(len(job.prompts) * job.params.n)
    streams: list[RequestStream] = []
    try:
        for place, prompt in enumerate(job.prompts):
            stream = await state.llm.add_request(
                prompt,
                job.params,
                request_id=f"{job.id}-{place}",
                priority=job.body.priority or 0,
                deadline=state.settings.request_timeout,
                output_kind="delta" if job.body.stream else "final",
            )
            stack.callback(stream.close)
            streams.append(stream)
    except HeadstockError as error:
        raise api_error(error, job.names) from error
    return streams


async def _whole(
    request: Request, state: ServerState, job: Job, shape: AnswerFormat, stack: ExitStack
) -> dict[str, Any]:
    streams = await _start(state, job, stack)
    usage = Usage([len(stream.request.token_ids) for stream in streams])
    outputs: list[RequestOutput] = []
    for place, stream in enumerate(streams):
        output = _checked(job, await _last(stream))
        usage.add(place, output)
        outputs.append(output)
    _note(request, usage)
    return {**shape.document(outputs), "usage": usage.document()}


async def _last(stream: RequestStream) -> RequestOutput:
    try:
        return [output async for output in stream][-1]
    except HeadstockError as error:
        raise api_error(error) from error


async def _events(
    request: Request, job: Job, shape: AnswerFormat, streams: Sequence[RequestStream]
) -> AsyncIterator[list[dict[str, Any]]]:
    """Payloads of the stream; usage as `stream_options` says."""
    options = job.body.stream_options
    counting = bool(options and options.include_usage)
    running = counting and bool(options and options.continuous_usage_stats)
    usage = Usage([len(stream.request.token_ids) for stream in streams])

    def told(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not counting:
            return chunks
        so_far = usage.document() if running else None
        return [{**chunk, "usage": so_far} for chunk in chunks]

    try:
        if opening := shape.opening():
            yield told(opening)
        async for place, delta in merged(streams):
            output = _checked(job, delta)
            usage.add(place, output)
            if chunks := shape.chunks(place, output):
                yield told(chunks)
        if counting:
            yield [{**shape.usage_chunk(), "usage": usage.document()}]
    except HeadstockError as error:
        raise api_error(error) from error
    except ApiError:
        raise
    except Exception as error:
        logger.exception("request %s failed", job.id)
        raise ApiError(500, "internal error; the server's log says more") from error
    finally:
        _note(request, usage)


def _checked(job: Job, output: RequestOutput) -> RequestOutput:
    """`output` as the client is to see it. Raises `ApiError` where a completion failed or was ended from outside."""
    for completion in output.outputs:
        if completion.finish_reason == "error":
            raise ApiError(500, f"the request failed: {completion.error}", code="request_failed")
        if completion.finish_reason == "abort":
            if completion.error is not None:
                raise ApiError(504, f"the request was {completion.error}", code="timeout")
            raise ApiError(503, "the request was ended, as the server is going down", code="aborted")
    if job.show_answers:
        return output
    bare = [replace(c, text="", token_ids=(), logprobs=c.logprobs and ()) for c in output.outputs]
    return replace(output, outputs=tuple(bare))


def _note(request: Request, usage: Usage) -> None:
    visit_of(request).notes.update(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
