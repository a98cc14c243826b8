"""A solution held against a definition's reference, on one workload: what FlashInfer-Trace keeps as a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...plugins import Failure, Guard
from ..interleave import timed_calls
from ..kernels.check import TOLERANCE
from .definitions import definition, input_names
from .workloads import Workload

ABSOLUTE = RELATIVE = 1e-2
"""An element that misses both is wrong: the defaults of flashinfer-bench."""
CALLS = 5
EPSILON = 1e-8
"""Added to exact values by which errors are divided, as flashinfer-bench does it."""
SEED = 20240607

Run = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What came of a solution on a workload."""

    status: str
    """``"PASSED"``, ``"INCORRECT_NUMERICAL"`` or ``"RUNTIME_ERROR"``."""
    reason: str = ""
    absolute: float = 0.0
    """Largest error of output and LSE."""
    relative: float = 0.0
    seconds: float = 0.0
    """Median of a call, plan included."""
    reference_seconds: float = 0.0
    """Of one call."""

    @property
    def right(self) -> bool:
        return self.status == "PASSED"

    def document(self, hardware: str, libraries: Mapping[str, str]) -> dict[str, Any]:
        """As the schema has an evaluation: numbers of correctness and speed only with the statuses that allow them."""
        found: dict[str, Any] = {
            "status": self.status,
            "environment": {"hardware": hardware, "libs": dict(libraries)},
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "log": self.reason,
            "correctness": None,
            "performance": None,
        }
        if self.status != "RUNTIME_ERROR":
            errors = {"max_relative_error": self.relative, "max_absolute_error": self.absolute}
            found["correctness"] = {name: e if isfinite(e) else "Infinity" for name, e in errors.items()}
        if self.right:
            found["performance"] = {
                "latency_ms": self.seconds * 1e3,
                "reference_latency_ms": self.reference_seconds * 1e3,
                "speedup_factor": self.reference_seconds / self.seconds,
            }
        return found


def inputs_of(workload: Workload) -> list[Any]:
    """The definition's inputs in their order, on the CPU. What was not recorded is random, always the same."""
    generator = torch.Generator().manual_seed(SEED)
    about = definition(workload.form)
    sizes = workload.axes | {axis: a["value"] for axis, a in about["axes"].items() if a["type"] == "const"}
    found: list[Any] = []
    for name in input_names(workload.form):
        if name == "sm_scale":
            found.append(workload.scale)
        elif name in workload.tensors:
            found.append(workload.tensors[name])
        else:
            shape = [sizes[axis] for axis in about["inputs"][name]["shape"]]
            found.append(torch.randn(shape, generator=generator).to(getattr(torch, workload.form.dtype)))
    return found


def reference_run(workload: Workload) -> Run:
    """``run`` of the definition's reference."""
    names: dict[str, Any] = {}
    exec(compile(definition(workload.form)["reference"], workload.form.name, "exec"), names)
    return names["run"]


def evaluate(workload: Workload, run: Run, guard: Guard) -> Evaluated:
    """Call the reference and the solution, compare, and time the solution if it is right."""
    inputs, exact = inputs_of(workload), reference_run(workload)
    start = perf_counter()
    wanted = exact(*inputs)
    reference_seconds = perf_counter() - start
    result = guard.attempt(lambda: run(*inputs))
    if isinstance(result, Failure):
        return Evaluated(status="RUNTIME_ERROR", reason=str(result))
    compared = [_compare(given, own) for given, own in zip(result, wanted, strict=True)]
    absolute, relative = max(c[0] for c in compared), max(c[1] for c in compared)
    share = _share(result[0], wanted[0])
    if not all(c[2] for c in compared) or not share <= TOLERANCE[workload.form.dtype]:
        reason = f"largest error {absolute:.1e}, {share:.1e} of the largest exact value"
        return Evaluated(status="INCORRECT_NUMERICAL", reason=reason, absolute=absolute, relative=relative)
    seconds = guard.attempt(lambda: timed_calls(lambda: run(*inputs), CALLS, warm=False))
    if isinstance(seconds, Failure):
        return Evaluated(status="RUNTIME_ERROR", reason=str(seconds))
    return Evaluated(
        status="PASSED",
        absolute=absolute,
        relative=relative,
        seconds=median(seconds),
        reference_seconds=reference_seconds,
    )


def _compare(given: Tensor, exact: Tensor) -> tuple[float, float, bool]:
    """Largest absolute and relative error, and whether each element is within either bound; infinite ones are equal."""
    given, exact = given.double(), exact.double()
    absolute = torch.where(given == exact, 0.0, (given - exact).abs()).nan_to_num(float("inf"))
    relative = (absolute / (exact.abs() + EPSILON)).nan_to_num(0.0)  # of an exact value that is infinite
    return (
        float(absolute.max()),
        float(relative.max()),
        not bool(((absolute > ABSOLUTE) & (relative > RELATIVE)).any()),
    )


def _share(given: Tensor, exact: Tensor) -> float:
    """Largest error as a share of the largest exact value; infinite or NaN where one is not finite."""
    return float((given.double() - exact.double()).abs().max() / exact.double().abs().max().clamp_min(EPSILON))
