"""`POST /v1/embeddings`, where the model gives vectors."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...core.engine import EmbeddingEngine, Prompt
from ...core.errors import HeadstockError
from ...core.outputs import EmbeddingRequestOutput
from .bodies import read_body
from .errors import ApiError, api_error
from .sampling import read_texts
from .schemas import EmbeddingSchema
from .state import ServerState
from .streams import encode, unless_gone
from .visit import visit_of

NAMES = {"prompt": "input", "prompt_token_ids": "input"}


class TextEmbedder:
    """An `EmbeddingEngine` for an event loop: one thread computes, a step at a time, for whoever came first."""

    def __init__(self, engine: EmbeddingEngine) -> None:
        self.engine = engine
        self.queued = 0
        """Texts that have no vector yet."""
        self._thread = ThreadPoolExecutor(1, "headstock-engine")

    async def embed(self, prompts: Sequence[Prompt]) -> list[EmbeddingRequestOutput]:
        """Raises `InvalidInput` before anything is computed. Cancelled, it ends after the running step."""
        loop, done = asyncio.get_running_loop(), list[EmbeddingRequestOutput]()
        steps = self.engine.embed(prompts)
        self.queued += len(prompts)
        try:
            while (outputs := await loop.run_in_executor(self._thread, next, steps, None)) is not None:
                done += outputs
            return done
        finally:
            self.queued -= len(prompts)

    def close(self) -> None:
        """Wait for the running step, and forget the others."""
        self._thread.shutdown(cancel_futures=True)


async def embeddings(request: Request, state: ServerState, embedder: TextEmbedder) -> Response:
    """Give each text a vector."""
    body = await read_body(request, EmbeddingSchema, state)
    ignored = body.ignored()
    state.check_model(body.model)
    if body.encoding_format not in (None, "float", "base64"):
        raise _refusal("encoding_format", f"must be float or base64, not {body.encoding_format!r}")
    texts = await asyncio.to_thread(read_texts, "input", body.input, state)
    most = state.settings.max_queued_requests
    if embedder.queued and embedder.queued + len(texts) > most:
        raise state.busy(503, f"{embedder.queued} texts are waiting already", "queue_full")
    prompts = [Prompt(text=t) if isinstance(t, str) else Prompt(token_ids=t) for t in texts]
    with state.served(visit_of(request).client):
        limit = state.settings.request_timeout
        try:
            outputs = await unless_gone(request.receive, asyncio.wait_for(embedder.embed(prompts), limit))
        except TimeoutError:
            problem = f"the request was not finished within its deadline of {limit:g} s"
            raise ApiError(504, problem, code="timeout") from None
        except HeadstockError as error:
            raise api_error(error, NAMES) from error
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    visit_of(request).notes.update(prompt_tokens=tokens, ignored_fields=len(ignored))
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(output, body.encoding_format)}
        for index, output in enumerate(outputs)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": data, "model": state.model_name, "usage": usage}
    return Response(encode(document), media_type="application/json")


def _shown(output: EmbeddingRequestOutput, form: str | None) -> Any:
    """Numbers, or little-endian float32 in base64, as OpenAI's client asks for by itself."""
    vector = output.outputs.embedding
    if form != "base64":
        return list(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _refusal(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}", param=param, code="invalid_value")
