"""A backend of ours, or of a plugin, as a contender: cache filled, step planned, `forward` called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core.attention import AttentionBackend, AttentionSpec, Device, KVLayout, Workspace
from ...plugins.conformance.fence import FENCE_BYTES, allocate, fill_raw
from ..clock import seconds_of
from ..interleave import timed_calls
from .data import SEED, Pool, build_scene
from .draws import PLAIN, Draw, draws
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

    problem: str
    """What was wrong with the output of a timed call; empty where nothing was seen."""

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    @property
    def layout(self) -> str: ...

    def start(self, threads: int) -> Start:
        """Plan for `threads` threads, which are set, and call once."""
        ...

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        """Seconds of calls, each on inputs of its own; their outputs are looked at between them."""
        ...

    def check(self, draw: Draw) -> Tensor:
        """Output (T, Hq, D) of one more call, on inputs that `draw` makes."""
        ...

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
        self.problem = ""
        self._where = device.torch_device
        self._make = lambda limits: cls(spec, device, limits, Workspace(device.torch_device), options)
        decode_query_len = cls.capabilities(device).decode_query_len
        self._scene = build_scene(shape, pool, spec, layout, self._make, decode_query_len, self._where)
        self._plain = tuple(x.clone() for x in (self._scene.query, self._scene.key, self._scene.value))
        self._draws = draws(shape, SEED)
        size = (shape.tokens, spec.num_heads, spec.head_size_v)
        self._storage, self._out = allocate(size, self._scene.query.dtype, self._where)

    def open(self) -> None:
        """Make the backend, for as many threads as torch has now."""
        self._backend = self._make(self._scene.limits)
        self._backend.bind(self._scene.layer)
        fill_raw(self._storage, self._out.dtype, float("nan"))
        self._fence = self._storage[:FENCE_BYTES].clone()

    def start(self, threads: int) -> Start:
        self.open()
        self.plan()
        (second,) = timed_calls(self.plan, 1, warm=False)
        plans = timed_calls(self.plan, PLAN_CALLS if second < SLOW_PLAN_SECONDS else SLOW_PLAN_CALLS, warm=False)
        self.renew(PLAIN)
        first = seconds_of(self.call, self._where)
        return Start(plan_seconds=median(plans), first_seconds=first, out=self._out)

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        return self.timed(islice(self._draws, calls + warm))[int(warm) :]

    def timed(self, anew: Iterable[Draw]) -> list[float]:
        """Seconds of a call for each of these."""
        seconds: list[float] = []
        for draw in anew:
            self.renew(draw)
            seconds.append(seconds_of(self.call, self._where))
            self.problem = self.problem or self.fault()
        return seconds

    def check(self, draw: Draw) -> Tensor:
        self.renew(draw)
        return self.call()

    def close(self) -> None:
        del self._scene, self._out, self._storage

    def plan(self) -> None:
        self._plan = self._backend.plan(self._scene.batch)
        self._backend.prepare(self._plan)

    def renew(self, draw: Draw) -> None:
        """Other inputs for the next call: queries, and new tokens' keys and values, which go into the cache as in a
        step of an engine. What was in the output is gone."""
        scene = self._scene
        for plain, now, factor in zip(self._plain, (scene.query, scene.key, scene.value), draw.factors, strict=True):
            torch.mul(plain, factor, out=now)
        slots = scene.batch.slot_mapping
        assert slots is not None  # a scene has a cache
        self._backend.write_kv(scene.layer, scene.key, scene.value, scene.cache, slots)
        self._out.fill_(float("nan"))

    def fault(self) -> str:
        """What can be said against the output without knowing it; empty where nothing."""
        ends = (self._storage[:FENCE_BYTES], self._storage[-FENCE_BYTES:])
        if not all(torch.equal(end, self._fence) for end in ends):
            return "it writes outside of its output"
        return "" if bool(self._out.isfinite().all()) else "an output is not finite everywhere"

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
