"""`build_app`: the endpoints, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ...core.errors import HeadstockError
from ...core.version import __version__
from . import service
from .chat import chat_completions
from .completions import completions
from .embeddings import TextEmbedder, embeddings
from .errors import ApiError, api_error
from .gate import Gate
from .metrics import Metrics
from .schemas import ChatSchema, CompletionSchema, DetokenizeSchema, EmbeddingSchema, TokenizeSchema
from .state import ServerState
from .streams import GONE, ClientGone
from .visit import visit_of

Handler = Callable[[Request, ServerState], Awaitable[Response]]
Posts = dict[str, tuple[Handler, type[BaseModel]]]
VECTORS = "/v1/embeddings"
ANY_MODEL: Posts = {
    "/tokenize": (service.tokenize, TokenizeSchema),
    "/detokenize": (service.detokenize, DetokenizeSchema),
}
TEXT_MODEL: Posts = {
    "/v1/completions": (completions, CompletionSchema),
    "/v1/chat/completions": (chat_completions, ChatSchema),
}


def build_app(state: ServerState, metrics: Metrics, embedder: TextEmbedder | None = None) -> ASGIApp:
    """The application over an engine that is ready, or over a model that gives vectors."""
    posts = ANY_MODEL | _vectors(embedder) if embedder is not None else ANY_MODEL | TEXT_MODEL
    if state.engine is not None:
        metrics.engine.info = state.engine.client.info
    # The pages that FastAPI shows for people load scripts from elsewhere.
    app = FastAPI(title="Headstock", version=__version__, docs_url=None, redoc_url=None)
    for path, (handler, schema) in posts.items():
        _post(app, path, handler, schema, state)

    @app.get("/v1/models")
    async def models() -> Response:
        return await service.models(state)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return await service.model(state, name)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return await service.health(state)

    @app.get("/version")
    async def version() -> Response:
        return await service.version()

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return await service.metrics(state, metrics)

    if embedder is not None:
        absent = dict.fromkeys(TEXT_MODEL, "this server gives vectors and no text; --runner generate would give text")
    else:
        absent = {VECTORS: "this server gives text and no vectors; --runner pooling would give vectors"}
    _handle_errors(app, absent)
    handlers = [*posts, "/v1/models", "/health", "/version", "/metrics"]
    gate: ASGIApp = Gate(app, api_keys=state.settings.api_keys, handlers=handlers, metrics=metrics)
    if state.settings.allowed_origins:
        # Outside the gate: browsers ask without a key whether they may ask.
        gate = CORSMiddleware(
            gate, allow_origins=state.settings.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    return gate


def _vectors(embedder: TextEmbedder) -> Posts:
    async def handler(request: Request, state: ServerState) -> Response:
        return await embeddings(request, state, embedder)

    handler.__doc__ = embeddings.__doc__
    return {VECTORS: (handler, EmbeddingSchema)}


def _post(app: FastAPI, path: str, handler: Handler, schema: type[BaseModel], state: ServerState) -> None:
    """A route that reads its body itself, within limits, and shows the schema in /openapi.json all the same."""

    async def endpoint(request: Request) -> Response:
        return await handler(request, state)

    body = {"required": True, "content": {"application/json": {"schema": schema.model_json_schema()}}}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        summary=handler.__doc__,
        openapi_extra={"requestBody": body},
        response_model=None,
    )


def _handle_errors(app: FastAPI, absent: Mapping[str, str]) -> None:
    """`absent` says why there are paths that clients may look for, and that this server does not have."""

    async def respond(request: Request, error: Any) -> Response:
        return _answer(request, error, absent).response()

    for kind in (ApiError, HeadstockError, HTTPException, ClientGone, RecursionError, Exception):
        app.add_exception_handler(kind, respond)


def _answer(request: Request, error: Exception, absent: Mapping[str, str]) -> ApiError:
    """What a client is told of `error`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HeadstockError):
        return api_error(error)
    if isinstance(error, ClientGone):
        return ApiError(GONE, "the client has gone")
    if isinstance(error, HTTPException):
        path = request.url.path
        known = {404: absent.get(path, f"there is no {path}"), 405: f"{request.method} is not allowed here"}
        return ApiError(error.status_code, known.get(error.status_code, str(error.detail)))
    if isinstance(error, RecursionError):
        return ApiError(400, "the body is nested too deeply", code="invalid_json")
    return ApiError(500, f"internal error; the server's log says more under {visit_of(request).request_id}")
