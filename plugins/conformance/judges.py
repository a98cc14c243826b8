"""Judges that many cases share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .closed_forms import probe_means
from .ground import Ground
from .oracle import Tolerance, require_close, tolerance_of
from .problem import Problem, Rows
from .rig import Result, Rig, require_right
from .shrink import Judge
from .subject import Subject

EXACT: dict[str, float] = {"k_scale": 0.25, "v_scale": 0.25}
"""Scales with which 8-bit formats hold small whole numbers."""
PHASES: dict[str, Rows] = {
    "decode": ((1, 1), (1, 3), (1, 4), (1, 5), (1, 9)),
    "extend": ((3, 9), (2, 5), (6, 7)),
    "prefill": ((9, 9), (5, 5)),
    "mixed": ((1, 9), (1, 4), (3, 9), (9, 9)),
}
"""Batches of each sort, of rows up to nine keys."""
IN_SPLITS: Rows = ((1, 1300), (1, 600), (3, 1100))
"""Rows of so many keys that kernels cut them into splits, which they merge: three or two of 512, more of fewer."""


def closed(ground: Ground, rows: Rows, fill: str = "probe", **spec: Any) -> Problem:
    """A problem whose result is known in closed form, with these fields of its spec instead of the plain layer's."""
    return ground.problem(rows, spec=spec, fill=fill, **EXACT)


def phases(ground: Ground, fill: str = "probe", **spec: Any) -> Iterator[tuple[str, Problem]]:
    """Closed-form problems over the cache for each of `PHASES`, and over ragged K/V."""
    for name, rows in PHASES.items():
        yield name, closed(ground, rows, fill, kv_source="cache", **spec)
    yield "ragged", closed(ground, PHASES["mixed"], fill, kv_source="ragged", **spec)


def by_reference(subject: Subject, problem: Problem) -> None:
    """One step, held against the reference."""
    Rig(subject, problem).require_right(problem)


def runs(subject: Subject, problem: Problem) -> None:
    """One step, of which only is watched what it touches."""
    Rig(subject, problem).solve(problem)


def by_step(subject: Subject, problem: Problem) -> None:
    """The backend writes the step's rows, as in an engine, then attends; held against the reference."""
    rig = Rig(subject, problem)
    writes = problem.spec.kv_source == "cache" and not problem.shared
    scene = rig.scene(problem, written="context" if writes else "all")
    plan = rig.plan(scene.batch)
    if writes:
        rig.write(scene)
    require_right(problem, rig.forward(scene, plan))


def by_closed_form(out: Callable[[Problem], Tensor], lse: Callable[[Problem], Tensor] | None = None) -> Judge:
    """One step, held against a closed form that gives out (T, Hq or 1, Dv or 1), and one for the LSE (T, Hq or 1)."""

    def judge(subject: Subject, problem: Problem) -> None:
        result = Rig(subject, problem).solve(problem)
        bounds = tolerance_of(problem)
        require_close("out", result.out, out(problem).expand(result.out.shape), bounds.out)
        if lse is not None and result.lse is not None:
            require_close("LSE", result.lse, lse(problem).expand(result.lse.shape), bounds.lse)

    return judge


def require_probe(problem: Problem, result: Result) -> None:
    """Raise `Broken` unless `result` is that of a uniform probe."""
    require_close("out", result.out, probe_means(problem).expand(result.out.shape), tolerance_of(problem).out)


def require_alike(what: str, one: Result, other: Result, bounds: Tolerance | None = None) -> None:
    """Raise `Broken` unless both hold the same bits or, with `bounds`, numbers within twice those."""
    bounds = bounds or Tolerance(out=0.0, lse=0.0)
    require_close(f"out {what}", other.out, one.out, 2 * bounds.out)
    if one.lse is not None and other.lse is not None:
        require_close(f"LSE {what}", other.lse, one.lse, 2 * bounds.lse)


def constant(value: float) -> Callable[[Problem], Tensor]:
    """A closed form that is the same for every token, head and channel."""
    return lambda _: torch.full((1, 1, 1), value, dtype=torch.float64)
