"""A backend of ours, or of a plugin, as a contender: cache filled, step planned, `forward` called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core.attention import AttentionBackend, AttentionSpec, Device, KVLayout, Workspace
from ..interleave import timed_calls
from .data import Pool, build_scene
from .shapes import Shape

PLAN_CALLS, SLOW_PLAN_CALLS = 20, 3
SLOW_PLAN_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """A contender's first call."""

    plan_seconds: float
    """Median, of a step's plan and preparation."""
    first_seconds: float
    out: Tensor
    """(T, Hq, D), NaN where nothing was written."""


class KernelContender(Protocol):
    """What the runner needs, whether the kernel is in this process or behind a pipe."""

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    @property
    def layout(self) -> str: ...

    def start(self, threads: int) -> Start:
        """Plan for `threads` threads, which are set, and call once."""
        ...

    def turn(self, calls: int, warm: bool) -> Sequence[float]: ...

    def close(self) -> None:
        """Let go of the cache."""
        ...


class BackendContender:
    """A backend instance over a cache of its own, in the layout it likes best."""

    def __init__(
        self,
        name: str,
        cls: type[AttentionBackend[Any]],
        options: object,
        spec: AttentionSpec,
        layout: KVLayout,
        device: Device,
        shape: Shape,
        pool: Pool,
    ) -> None:
        self.name = name
        self.block_size = spec.block_size
        self.layout = layout.name
        self._make = lambda limits: cls(spec, device, limits, Workspace(device.torch_device), options)
        decode_query_len = cls.capabilities(device).decode_query_len
        self._scene = build_scene(shape, pool, spec, layout, self._make, decode_query_len)
        self._out = torch.empty(shape.tokens, spec.num_heads, spec.head_size_v, dtype=self._scene.query.dtype)

    def open(self) -> None:
        """Make the backend, for as many threads as torch has now."""
        self._backend = self._make(self._scene.limits)
        self._backend.bind(self._scene.layer)
        self._out.fill_(float("nan"))

    def start(self, threads: int) -> Start:
        self.open()
        self.plan()
        (second,) = timed_calls(self.plan, 1, warm=False)
        plans = timed_calls(self.plan, PLAN_CALLS if second < SLOW_PLAN_SECONDS else SLOW_PLAN_CALLS, warm=False)
        begin = perf_counter()
        self.call()
        return Start(plan_seconds=median(plans), first_seconds=perf_counter() - begin, out=self._out)

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        return timed_calls(self.call, calls, warm)

    def close(self) -> None:
        del self._scene, self._out

    def plan(self) -> None:
        self._plan = self._backend.plan(self._scene.batch)
        self._backend.prepare(self._plan)

    def call(self) -> Tensor:
        scene = self._scene
        self._backend.forward(
            scene.layer,
            scene.query,
            key=scene.key,
            value=scene.value,
            kv_cache=scene.cache,
            plan=self._plan,
            out=self._out,
        )
        return self._out
