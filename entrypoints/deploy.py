"""Where engines live: in this process, in processes of their own, on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import msgspec

from ..core.engine import (
    AttentionRecord,
    EngineConfig,
    EnginePort,
    Launch,
    LoopPort,
    ProcessCarrier,
    RayCarrier,
    RestartingPort,
    RouterPort,
)
from ..core.errors import InvalidInput
from ..core.model import ModelFolder
from ..selector import Policy

EngineKind = Literal["inproc", "process", "ray"]
"""``inproc``: in this process; ``process``: in a child process; ``ray``: in an actor on a Ray cluster."""
COMPOSER = "headstock.entrypoints.compose:compose_core"
"""What makes the core in the engine's own process, from an `Order`."""
MOST_ENGINES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How many engines, and where. Raises `InvalidInput` naming the field."""

    engine: EngineKind = "inproc"
    data_parallel_size: int = 1
    """Engines, each with the whole model; requests are shared out among them."""
    restart_engine: bool = False
    """Start an engine again that has died; its requests end with an error."""

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineKind):
            raise InvalidInput("engine", f"must be one of {', '.join(get_args(EngineKind))}, not {self.engine!r}")
        count = self.data_parallel_size
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_ENGINES:
            raise InvalidInput("data_parallel_size", f"must be an integer from 1 to {MOST_ENGINES}, not {count!r}")
        if not isinstance(self.restart_engine, bool):
            raise InvalidInput("restart_engine", f"must be True or False, not {self.restart_engine!r}")
        if self.engine == "inproc":
            if count > 1:
                raise InvalidInput("data_parallel_size", f"{count} engines need engine=process or engine=ray")
            if self.restart_engine:
                raise InvalidInput("restart_engine", "an engine in this process ends with it; use engine=process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an engine elsewhere is told, as data."""

    model: str
    path: str
    origin: str
    config: EngineConfig
    policy: Policy
    attention: AttentionRecord
    """What was chosen here; the engine has to choose the same."""
    rank: int
    """Its number among the engines."""


def open_port(
    folder: ModelFolder, config: EngineConfig, policy: Policy, record: AttentionRecord, deployment: Deployment
) -> EnginePort:
    """Start engines that are not in this process; raises what they are refused for."""
    makers: list[Callable[[], EnginePort]] = []
    for rank in range(deployment.data_parallel_size):
        order = Order(
            model=folder.name,
            path=os.fspath(folder.path),
            origin=folder.origin,
            config=replace(config, device=replace(config.device, index=_device_of(config, rank, deployment))),
            policy=policy,
            attention=record,
            rank=rank,
        )
        make = _maker(order, deployment)
        makers.append(partial(RestartingPort, make) if deployment.restart_engine else make)
    return makers[0]() if len(makers) == 1 else RouterPort.open(makers)


def _maker(order: Order, deployment: Deployment) -> Callable[[], EnginePort]:
    launch = _launch(order, deployment)
    if deployment.engine == "ray":
        num_gpus = 0 if order.config.device.platform == "cpu" else 1
        return lambda: LoopPort(RayCarrier(launch, num_gpus=num_gpus))
    return lambda: LoopPort(ProcessCarrier(launch))


def _device_of(config: EngineConfig, rank: int, deployment: Deployment) -> int:
    """CPUs are shared; of accelerators each engine has its own, which Ray lets it see as the first."""
    if config.device.platform == "cpu":
        return config.device.index
    return 0 if deployment.engine == "ray" else config.device.index + rank


def _launch(order: Order, deployment: Deployment) -> Launch:
    try:
        payload = msgspec.msgpack.encode(order)
    except TypeError as error:
        raise InvalidInput("attention_backend_config", f"cannot be sent to another process: {error}") from error
    environ: dict[str, str] = {}
    if order.config.device.platform == "cpu" and deployment.data_parallel_size > 1:
        share = max(1, order.config.device.units // deployment.data_parallel_size)
        environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(share))
    return Launch(composer=COMPOSER, payload=payload, environ=environ)
