"""The server over the small model, in a thread with a loop of its own, and real sockets to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from headstock.core.engine import AsyncLLMEngine, AsyncRemoteClient, EngineCore, EnginePort, LoopPort, ThreadCarrier
from headstock.core.model import ModelFolder
from headstock.core.scheduler import SchedulerStats
from headstock.core.text import ChatTemplate
from headstock.entrypoints.server.app import build_app
from headstock.entrypoints.server.listen import Address
from headstock.entrypoints.server.metrics import Metrics
from headstock.entrypoints.server.run import HttpServer
from headstock.entrypoints.server.serve import text_state
from headstock.entrypoints.server.settings import ServerSettings
from headstock.entrypoints.server.state import ServerState

from .lives import PATIENCE
from .tiny import tiny_core, tiny_inputs

T = TypeVar("T")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
"""A chat template that puts everything into the prompt as it is."""


@dataclass(slots=True, kw_only=True)
class Served:
    """A server that runs."""

    port: int
    state: ServerState
    http: HttpServer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    key: str | None = None

    @property
    def url(self) -> str:
        """As the openai client wants it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def stats(self) -> SchedulerStats:
        return self.call(self.state.engine.client.stats())

    def at_rest(self) -> None:
        """Wait until no request, running, queued or half forgotten, is left, and no block is owned."""

        async def wait() -> None:
            engine = self.state.engine
            while True:
                stats = await engine.client.stats()
                busy = stats.num_running or stats.num_waiting or stats.kv_usage
                if not busy and not engine.request_ids and not engine.num_queued and self.state.idle.is_set():
                    return
                await asyncio.sleep(0.005)

        self.call(asyncio.wait_for(wait(), PATIENCE))

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """One request; `body` is JSON, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        given = {"Content-Type": "application/json"} if body is not None else {}
        if self.key:
            given["Authorization"] = f"Bearer {self.key}"
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, given | (headers or {}))
            response = connection.getresponse()
            return Reply(
                status=response.status, headers={k.lower(): v for k, v in response.getheaders()}, body=response.read()
            )
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> Reply:
        return self.send("POST", path, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in it, whose shape is checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """Payloads of the server-sent events; the last is `[DONE]`, left out."""
        events = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def texts(self) -> dict[int, str]:
        """Text of a stream of completions, by choice."""
        found: dict[int, str] = {}
        for event in self.events:
            for choice in event["choices"]:
                found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
        return found


@contextmanager
def served(
    folder: ModelFolder,
    *,
    metrics_prefix: str = "vllm",
    provider: Any = None,
    engine: dict[str, Any] | None = None,
    prepare: Callable[[EngineCore], None] | None = None,
    port: Callable[[EngineCore], EnginePort] = lambda core: LoopPort(ThreadCarrier(core)),
    **settings: Any,
) -> Generator[Served]:
    """A server over `folder`, ended at the end. `engine` goes into the `EngineConfig`, `settings` to the server.

    `prepare` may change the core before it runs, in `port`.
    """
    values = ServerSettings(
        **{"model_names": ("tiny",), "shutdown_timeout": 0.0, "metrics_prefix": metrics_prefix, **settings}
    )
    metrics = Metrics(values.metrics_prefix, values.model_names[0])
    core = tiny_core(folder, provider, **(engine or {}))
    if prepare is not None:
        prepare(core)
    client = AsyncRemoteClient(port(core))
    front = AsyncLLMEngine(client, tiny_inputs(folder), metrics)
    state = text_state(front, ChatTemplate({"default": TEMPLATE}, {}), values)
    with running(build_app(state, metrics), state) as server:
        yield server


@contextmanager
def running(app: Any, state: ServerState) -> Generator[Served]:
    """An application in a thread, on a port of its own, ended at the end."""
    address, loop = Address(port=0), asyncio.new_event_loop()
    server = HttpServer(app, state, address)
    keys = state.settings.api_keys
    with address.open() as listening:
        port = listening.getsockname()[1]
        listening.listen()  # whoever connects before the loop runs waits
        thread = threading.Thread(target=loop.run_until_complete, args=(server.run_until_told(listening),))
        thread.start()
        try:
            yield Served(port=port, state=state, http=server, loop=loop, thread=thread, key=keys[0] if keys else None)
        finally:
            server.begin_drain("test")
            thread.join(PATIENCE)
            loop.close()


def lines(connection: socket.socket) -> Iterator[str]:
    """Lines of a response as they come, without ends."""
    with connection.makefile("rb") as file:
        for line in file:
            yield line.decode().rstrip("\r\n")
