"""Endpoints about the server itself and about tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import EngineDeadError, InvalidInput
from ...core.version import __version__
from .bodies import read_body
from .chat import conversation
from .errors import ApiError
from .metrics import Metrics
from .schemas import DetokenizeSchema, TokenizeSchema
from .state import ServerState
from .streams import encode


def json_response(document: Any) -> Response:
    return Response(encode(document), media_type="application/json")


async def health(state: ServerState) -> Response:
    """200 while requests are welcome; 503 once the engine is dead or the server is going down."""
    if state.draining:
        raise ApiError(503, "the server is going down", code="shutting_down")
    if state.engine is not None:
        state.engine.client.check_health()
    return json_response({})


async def version() -> Response:
    return json_response({"version": __version__})


async def models(state: ServerState) -> Response:
    """Every name of the one model that is served."""
    return json_response({"object": "list", "data": [_model(state, name) for name in state.settings.model_names]})


async def model(state: ServerState, name: str) -> Response:
    """One of them."""
    state.check_model(name)
    return json_response(_model(state, name))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "headstock",
        "root": state.model_name,
        "parent": None,
        "max_model_len": state.max_model_len,
    }


async def metrics(state: ServerState, counted: Metrics) -> Response:
    """Prometheus' text format. A dead engine's last counts stay."""
    if state.engine is not None:
        try:
            counted.engine.stats = await state.engine.client.stats()
            counted.engine.alive = True
        except EngineDeadError:
            counted.engine.alive = False
    return Response(counted.text(), media_type=CONTENT_TYPE_LATEST)


async def tokenize(request: Request, state: ServerState) -> Response:
    """Token ids of a text, or of a conversation."""
    body = await read_body(request, TokenizeSchema, state)
    body.ignored()
    state.check_model(body.model)
    tokenizer = state.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt: give either prompt or messages", param="prompt", code="invalid_value")
    if body.prompt is not None:
        state.check_length("prompt", body.prompt)
        ids = await asyncio.to_thread(
            tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    else:
        generation = body.add_generation_prompt is not False
        prompt = await conversation(state, body.messages, body.chat_template_kwargs, add_generation_prompt=generation)
        ids = prompt.token_ids or ()
    document: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": state.max_model_len,
        "tokens": list(ids),
    }
    if body.return_token_strs:
        document["token_strs"] = [tokenizer.token_text(token) for token in ids]
    return json_response(document)


async def detokenize(request: Request, state: ServerState) -> Response:
    """The text of token ids, special tokens included."""
    body = await read_body(request, DetokenizeSchema, state)
    body.ignored()
    state.check_model(body.model)
    return json_response({"prompt": await asyncio.to_thread(_text_of, state, body.tokens)})


def _text_of(state: ServerState, tokens: Sequence[int]) -> str:
    size = state.vocab_size
    for place, token in enumerate(tokens):
        if not 0 <= token < size:
            raise InvalidInput(f"tokens[{place}]", f"token id {token} is not in the vocabulary (0 to {size - 1})")
    return state.tokenizer.decode(tokens, skip_special_tokens=False)
