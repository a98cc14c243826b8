"""The small model's engine in every life, behind either kind of client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from headstock.core.engine import (
    AsyncEngineClient,
    AsyncRemoteClient,
    EngineClient,
    EnginePort,
    InprocClient,
    RemoteClient,
    ThreadPort,
)
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.core.scheduler import EngineCoreOutput, EngineRequest

from .tiny import tiny_core

PATIENCE = 60.0
"""Seconds after which a wait has failed: this is a busy machine."""


def open_port(life: str, folder: ModelFolder, **config: Any) -> EnginePort:
    """An engine of `life` over the small model; `config` goes into its `EngineConfig`."""
    return PORTS[life](folder, **config)


def _thread(folder: ModelFolder, **config: Any) -> EnginePort:
    return ThreadPort(tiny_core(folder, **config))


PORTS: dict[str, Callable[..., EnginePort]] = {"thread": _thread}


@contextmanager
def client_of(life: str, folder: ModelFolder, **config: Any) -> Generator[EngineClient]:
    """A client of an engine, closed at the end."""
    if life == "inproc":
        client: EngineClient = InprocClient(tiny_core(folder, **config))
    else:
        client = RemoteClient(open_port(life, folder, **config))
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def async_client_of(life: str, folder: ModelFolder, **config: Any) -> AsyncGenerator[AsyncEngineClient]:
    """The same for asyncio."""
    client = AsyncRemoteClient(open_port(life, folder, **config))
    try:
        yield client
    finally:
        client.close()


def request(request_id: str, prompt: Iterable[int], **params: Any) -> EngineRequest:
    """Greedy and eight tokens long, unless `params` say otherwise."""
    settings = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params}
    return EngineRequest(request_id=request_id, prompt_token_ids=tuple(prompt), params=SamplingParams(**settings))


Fates = dict[str, tuple[tuple[int, ...], str | None]]
"""Request id → its tokens and the reason of its end."""


def gather(outputs: Iterable[EngineCoreOutput], fates: Fates) -> None:
    """Take news in. A request has nothing to tell after its end."""
    for output in outputs:
        tokens, reason = fates.get(output.request_id, ((), None))
        assert reason is None, f"{output.request_id} had ended"
        fates[output.request_id] = (tokens + output.new_token_ids, output.finish_reason)


def run(client: EngineClient, requests: Iterable[EngineRequest] = ()) -> Fates:
    """Serve `requests`, and all that are there, to their ends."""
    for each in requests:
        client.add_request(each)
    fates: Fates = {}
    while client.has_unfinished_requests():
        gather(client.get_outputs(), fates)
    return fates


async def run_async(client: AsyncEngineClient, requests: Iterable[EngineRequest]) -> Fates:
    """The same for asyncio."""
    waiting: set[str] = set()
    for each in requests:
        await client.add_request(each)
        waiting.add(each.request_id)
    fates: Fates = {}
    while waiting:
        gather(await soon(client.get_outputs()), fates)
        waiting -= {i for i, (_, reason) in fates.items() if reason is not None}
    return fates


async def soon(awaitable: Awaitable[Any]) -> Any:
    """What `awaitable` gives, or a failure where it takes too long."""
    return await asyncio.wait_for(awaitable, PATIENCE)
