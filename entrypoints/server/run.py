"""`HttpServer`: uvicorn around the application, from the first request to a quiet end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from ...core.engine import AsyncLLMEngine
from .listen import Address
from .logs import log_with
from .state import ServerState

logger = logging.getLogger(__name__)

LAST_WORDS = 5
"""Seconds for answers that are being sent when the server stops accepting."""


class HttpServer(uvicorn.Server):
    """Serves until it is told to end, or until the engine dies.

    Told to end, it first says so on `/health` and refuses new requests, lets those that run finish within
    `shutdown_timeout`, ends what is left, and only then stops listening. A second signal ends it at once.
    """

    def __init__(self, app: ASGIApp, state: ServerState, address: Address) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=LAST_WORDS,
                ssl_keyfile=address.ssl_keyfile,
                ssl_certfile=address.ssl_certfile,
                ssl_ca_certs=address.ssl_ca_certs,
                ssl_cert_reqs=ssl.CERT_REQUIRED if address.ssl_ca_certs else ssl.CERT_NONE,
            )
        )
        self._state = state
        self._address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self.exit_code = 0
        """1 after the engine's death."""

    async def run_until_told(self, listening: socket.socket) -> int:
        """Serve on a bound socket; the exit code."""
        self._loop = asyncio.get_running_loop()
        engine = self._state.engine
        watch = [] if engine is None else [asyncio.create_task(self._watch(engine))]
        try:
            await self.serve(sockets=[listening])
        finally:
            tasks = watch if self._drain is None else [*watch, self._drain]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if engine is not None:
                await engine.close()
            if self._address.uds is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._address.uds)
        return self.exit_code

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            url = self._address.url(listening)
            log_with(logger, logging.INFO, "ready", url=url, models=",".join(self._state.settings.model_names))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, the second one is the end."""
        if self._state.draining:
            self.should_exit = self.force_exit = True
        self.begin_drain(signal.Signals(sig).name)

    def begin_drain(self, reason: str) -> None:
        """From any thread: let the server come to its end."""
        self._state.draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_drain, reason)

    def _start_drain(self, reason: str) -> None:
        if self._drain is None:
            self._drain = asyncio.create_task(self._drained(reason))

    async def _drained(self, reason: str) -> None:
        state, limit = self._state, self._state.settings.shutdown_timeout
        log_with(logger, logging.INFO, "going down", reason=reason, running=state.running.total(), limit_seconds=limit)
        try:
            await asyncio.wait_for(state.idle.wait(), limit)
        except TimeoutError:
            left = state.running.total()
            log_with(logger, logging.WARNING, "ending requests that did not finish in time", requests=left)
            if state.engine is not None:
                await state.engine.abort(state.engine.request_ids)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(state.idle.wait(), LAST_WORDS)
        self.should_exit = True

    async def _watch(self, engine: AsyncLLMEngine) -> None:
        """A server whose engine has died ends, so that whoever started it can start another."""
        error = await engine.died()
        self.exit_code = 1
        self._state.draining = True
        logger.critical("%s", error)
        with contextlib.suppress(TimeoutError):  # whoever waits is being told
            await asyncio.wait_for(self._state.idle.wait(), LAST_WORDS)
        self.should_exit = True
