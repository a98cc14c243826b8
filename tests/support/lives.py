"""The small model's engine in every life, behind either kind of client."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headstock.core.engine import (
    AsyncEngineClient,
    AsyncRemoteClient,
    EngineClient,
    EngineCore,
    EnginePort,
    Launch,
    LoopPort,
    ProcessCarrier,
    RayCarrier,
    RouterPort,
    ThreadCarrier,
    Vigil,
)
from headstock.core.errors import BackendError
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.core.scheduler import EngineCoreOutput, EngineRequest, ModelRunnerOutput, SchedulerOutput

from .tiny import tiny_core

PATIENCE = 60.0
"""Seconds after which a wait has failed: this is a busy machine."""


def open_port(life: str, folder: ModelFolder, **config: Any) -> EnginePort:
    """An engine of `life` over the small model; `config` goes into its `EngineConfig`."""
    return PORTS[life](folder, **config)


def _thread(folder: ModelFolder, **config: Any) -> EnginePort:
    return LoopPort(ThreadCarrier(tiny_core(folder, **config)))


def _process(folder: ModelFolder, **config: Any) -> EnginePort:
    return LoopPort(ProcessCarrier(launch(folder, **config)))


def launch(
    folder: ModelFolder, *, composer: str = "support.lives:compose", vigil: Vigil | None = None, **config: Any
) -> Launch:
    """What starts the small model's engine in a process; `composer` gets `config` and the folder."""
    order = {"folder": {"name": folder.name, "path": str(folder.path)}, "config": config}
    return Launch(composer=composer, payload=msgspec.json.encode(order), vigil=vigil or Vigil())


def compose(payload: bytes) -> EngineCore:
    """Called in the process."""
    order = msgspec.json.decode(payload)
    name, path = order["folder"]["name"], Path(order["folder"]["path"])
    return tiny_core(ModelFolder(name=name, path=path, origin="made by a test"), **order["config"])


def compose_failing(payload: bytes) -> EngineCore:
    """Its first step raises."""
    core = compose(payload)

    def execute_model(output: SchedulerOutput) -> ModelRunnerOutput:
        raise RuntimeError("the card has fallen out")

    core.worker.execute_model = execute_model
    return core


def compose_refused(payload: bytes) -> EngineCore:
    raise BackendError("no backend fits, for a reason")


def compose_crashing(payload: bytes) -> EngineCore:
    raise ZeroDivisionError("by nothing")


def compose_vanishing(payload: bytes) -> EngineCore:
    print("my last words", flush=True)
    os._exit(3)


def compose_talking(payload: bytes) -> EngineCore:
    print("said in Python", flush=True)
    os.write(1, b"said in C\n")
    return compose(payload)


def compose_slow(payload: bytes) -> EngineCore:
    """A prompt of token 200 takes a step of 2 s; one of token 201 for ever."""
    return _slow(payload, 2.0)


def compose_very_slow(payload: bytes) -> EngineCore:
    return _slow(payload, 20.0)


def _slow(payload: bytes, seconds: float) -> EngineCore:
    core = compose(payload)
    execute = core.worker.execute_model

    def execute_model(output: SchedulerOutput) -> ModelRunnerOutput:
        for new in output.new_requests:
            time.sleep({200: seconds, 201: 1e6}.get(new.token_ids[0], 0.0))
        return execute(output)

    core.worker.execute_model = execute_model
    return core


def _ray(folder: ModelFolder, **config: Any) -> EnginePort:
    return LoopPort(RayCarrier(launch(folder, **config)))


def _several(life: Callable[..., EnginePort]) -> Callable[..., EnginePort]:
    """Two engines behind a router."""
    return lambda folder, **config: RouterPort.open([partial(life, folder, **config)] * 2)


PORTS: dict[str, Callable[..., EnginePort]] = {
    "thread": _thread,
    "process": _process,
    "two threads": _several(_thread),
    "two processes": _several(_process),
    "two ray actors": _several(_ray),
}


@asynccontextmanager
async def async_client_of(life: str, folder: ModelFolder, **config: Any) -> AsyncGenerator[AsyncEngineClient]:
    """A client of an engine of its own, closed at the end."""
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
