"""`serve`: a model behind HTTP, in this process, to its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable

from prometheus_client import disable_created_metrics
from starlette.types import ASGIApp

from ...core.engine import AsyncLLMEngine, EmbeddingEngine, Observer
from ...core.errors import ModelError
from ...core.model import ModelFolder
from ...core.text import ChatTemplate
from .app import build_app
from .embeddings import TextEmbedder
from .listen import Address
from .metrics import Metrics
from .run import HttpServer
from .settings import ServerSettings
from .state import ServerState

logger = logging.getLogger(__name__)


def serve(
    folder: ModelFolder,
    build: Callable[[Observer], AsyncLLMEngine | EmbeddingEngine],
    settings: ServerSettings,
    address: Address,
) -> int:
    """Bind `address`, build the engine, serve until told to end; the exit code.

    Raises `HeadstockError` for what cannot be done, before the weights load where that can be known.
    """
    address.check_tls()
    if not address.is_local and not settings.api_keys:
        host, _ = address.place
        logger.warning("%s can be reached from elsewhere, and there is no --api-key: it is open to all", host)
    disable_created_metrics()  # a second series beside each counter, which no board shows
    metrics = Metrics(settings.metrics_prefix, settings.model_names[0])
    with address.open() as listening:
        engine = build(metrics)
        if isinstance(engine, EmbeddingEngine):
            return _run_embedder(engine, settings, metrics, address, listening)
        for line in engine.client.info.attention:
            logger.info("%s", line)
        state = text_state(engine, read_template(folder), settings)
        return _run(build_app(state, metrics), state, address, listening)


def text_state(engine: AsyncLLMEngine, template: ChatTemplate | None, settings: ServerSettings) -> ServerState:
    """Of a server over a model that gives text."""
    info = engine.client.info
    return ServerState(
        engine=engine,
        tokenizer=engine.inputs.tokenizer,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        template=template,
        settings=settings,
    )


def vector_state(engine: EmbeddingEngine, settings: ServerSettings) -> ServerState:
    """Of a server over a model that gives vectors."""
    return ServerState(
        engine=None,
        tokenizer=engine.inputs.tokenizer,
        max_model_len=engine.max_model_len,
        vocab_size=engine.model.vocab_size,
        template=None,
        settings=settings,
    )


def _run_embedder(
    engine: EmbeddingEngine, settings: ServerSettings, metrics: Metrics, address: Address, listening: socket.socket
) -> int:
    state, embedder = vector_state(engine, settings), TextEmbedder(engine)
    try:
        return _run(build_app(state, metrics, embedder), state, address, listening)
    finally:
        embedder.close()


def _run(app: ASGIApp, state: ServerState, address: Address, listening: socket.socket) -> int:
    server = HttpServer(app, state, address)
    gc.collect()
    gc.freeze()  # what is here now stays: looking it through again would hold up everybody who waits
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        return runner.run(server.run_until_told(listening))


def read_template(folder: ModelFolder) -> ChatTemplate | None:
    """The model's chat template, where it has one."""
    try:
        return ChatTemplate.from_folder(folder.path)
    except ModelError as error:
        logger.warning("chat is not offered: %s", str(error).splitlines()[0])
        return None
