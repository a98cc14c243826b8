"""Every recorded step, computed by one backend and held against the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...core.attention import AttentionSpec
from ...core.live import RecordedTensors, Recording
from ...plugins import Failure, Guard, Offer
from ...selector.judge import Judge, Terms
from ..kernels.check import expected
from ..kernels.contenders import BackendContender
from ..kernels.data import Pool
from ..kernels.run import fitting_block_size, too_large
from ..kernels.shapes import Shape
from .shapes import RecordedPool, made_up_pool, step_shapes

BLOCK_SIZE = 16
"""Where the backend takes it."""
COPIES = 3
"""Of keys and values: the vectors, the cache, and what a backend may gather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One step's attention in one group."""

    step: int
    group: int
    label: str
    recorded_backend: str
    vectors: str
    """``"recorded"`` or ``"random"``."""
    verdict: str
    """``"right"``, ``"wrong"``, ``"failed"`` or ``"does not fit"``."""
    reason: str = ""
    error: float | None = None
    """Largest error of the checked rows, as a share of the largest exact value."""
    microseconds: float | None = None
    """Of the second call."""


def replay(recording: Recording, offer: Offer, judge: Judge, guard: Guard) -> Iterator[Replayed]:
    """The steps in their order. What a step does to the cache is not carried on: each has its own."""
    with torch.inference_mode():
        for step in recording.steps:
            tensors = {recorded.group: recorded for recorded in step.tensors}
            for index, shape in step_shapes(step):
                dtype, kept = step.groups[index].spec.dtype, tensors.get(index)
                yield Replayed(
                    step=step.number,
                    group=index,
                    label=shape.label,
                    recorded_backend=step.groups[index].backend,
                    vectors="random" if kept is None else "recorded",
                    **_one(shape, dtype, kept, offer, judge, guard),
                )


def _one(
    shape: Shape, dtype: str, kept: RecordedTensors | None, offer: Offer, judge: Judge, guard: Guard
) -> dict[str, Any]:
    """Verdict, reason, error and time."""
    spec: AttentionSpec = shape.spec(dtype, fitting_block_size(BLOCK_SIZE, judge.standing(offer)[1]))
    if reasons := judge.reasons(offer, spec, Terms(block_size=spec.block_size)):
        return {"verdict": "does not fit", "reason": "; ".join(reasons)}
    if reason := too_large(shape, dtype, COPIES, judge.device):
        return {"verdict": "does not fit", "reason": reason}
    pool: Pool = made_up_pool(shape, dtype) if kept is None else RecordedPool(shape, kept)
    cls, layout = offer.load(), judge.layouts[judge.layouts_of(offer, spec)[0]]
    assert cls is not None  # a backend that cannot be loaded has reasons

    def compute() -> tuple[torch.Tensor, float]:
        contender = BackendContender(offer.label, cls, judge.options(offer), spec, layout, judge.device, shape, pool)
        out = contender.start(torch.get_num_threads()).out.clone()
        return out, contender.turn(1, warm=False)[0]

    result = guard.attempt(compute)
    if isinstance(result, Failure):
        return {"verdict": "failed", "reason": str(result)}
    out, seconds = result
    exact = expected(shape, pool, dtype)
    error = exact.error(out)
    problem = exact.problem(error)
    return {
        "verdict": "wrong" if problem else "right",
        "reason": problem,
        "error": error if error != float("inf") else None,
        "microseconds": seconds * 1e6,
    }
