"""`serve`: a model behind HTTP, in this process, to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import disable_created_metrics

from ...core.engine import AsyncLLMEngine, Observer
from ...core.errors import ModelError
from ...core.model import ModelFolder
from ...core.text import ChatTemplate
from .app import build_app
from .listen import Address
from .metrics import Metrics
from .run import HttpServer
from .settings import ServerSettings
from .state import ServerState

logger = logging.getLogger(__name__)


def serve(
    folder: ModelFolder,
    build: Callable[[Observer], AsyncLLMEngine],
    settings: ServerSettings,
    address: Address,
) -> int:
    """Bind `address`, build the engine, serve until told to end; the exit code.

    Raises `HeadstockError` for what cannot be done, before the weights load where that can be known.
    """
    address.check_tls()
    if not address.is_local and not settings.api_keys:
        logger.warning("%s can be reached from elsewhere, and there is no --api-key: it is open to all", address.host)
    disable_created_metrics()  # a second series beside each counter, which no board shows
    metrics = Metrics(settings.metrics_prefix, settings.model_names[0])
    with address.open() as listening:
        template = read_template(folder)
        engine = build(metrics)
        for line in engine.client.info.attention:
            logger.info("%s", line)
        state = ServerState(engine=engine, template=template, settings=settings)
        server = HttpServer(build_app(state, metrics), state, address)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            return runner.run(server.run_until_told(listening))


def read_template(folder: ModelFolder) -> ChatTemplate | None:
    """The model's chat template, where it has one."""
    try:
        return ChatTemplate.from_folder(folder.path)
    except ModelError as error:
        logger.warning("chat is not offered: %s", str(error).splitlines()[0])
        return None
