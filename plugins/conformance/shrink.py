"""Making a failing problem small: whatever can be left out while it still fails, is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from ...core.attention import DTYPE_FORMATS, AttentionSpec
from ...core.errors import InvalidInput
from .broken import Broken, Skipped
from .problem import Problem
from .subject import Subject

Judge = Callable[[Subject, Problem], None]
"""Raises `Broken` where the subject does not keep the convention with this problem."""
SECONDS = 10.0
"""Time that one failure may take to be made smaller."""


def failure(subject: Subject, problem: Problem, judge: Judge) -> Broken | None:
    """How the subject fails, or None where it does not, or does not offer what the problem asks."""
    try:
        if not subject.reasons(problem):
            judge(subject, problem)
    except Broken as broken:
        return broken
    except Skipped:
        return None
    return None


def shrink(subject: Subject, problem: Problem, judge: Judge, broken: Broken) -> tuple[Problem, Broken]:
    """The smallest problem found, step by step, that breaks the same convention, and how it does."""
    deadline = time.monotonic() + SECONDS
    improved = True
    while improved:
        improved = False
        for candidate in smaller(problem):
            if time.monotonic() > deadline:
                return problem, broken
            found = failure(subject, candidate, judge)
            if found is not None and found.convention == broken.convention:
                problem, broken, improved = candidate, found, True
                break
    return problem, broken


def smaller(problem: Problem) -> Iterator[Problem]:
    """Problems one step simpler than `problem`, the greatest steps first."""
    yield from _fewer_rows(problem)
    yield from _plainer(problem)
    for spec in _plainer_specs(problem.spec):
        yield replace(problem, spec=spec)
    yield from _shorter_rows(problem)


def _fewer_rows(problem: Problem) -> Iterator[Problem]:
    rows = problem.rows
    if len(rows) > 1:
        for row in range(len(rows)):
            yield replace(problem, rows=(rows[row],))
        for row in range(len(rows)):
            yield replace(problem, rows=rows[:row] + rows[row + 1 :])


def _plainer(problem: Problem) -> Iterator[Problem]:
    """Each field that has a default, set to it."""
    for field in fields(Problem):
        if field.name not in ("spec", "rows", "fill") and getattr(problem, field.name) != field.default:
            yield replace(problem, **{field.name: field.default})


def _plainer_specs(spec: AttentionSpec) -> Iterator[AttentionSpec]:
    changes: list[dict[str, Any]] = [
        {"window": None},
        {"softcap": None},
        {"alibi": False},
        {"sinks": False},
        {"lse": False},
        {"scale": 0.0},
        {"kv_source": "cache"},
        {"kind": "decoder"},
        {"causal": True},
        {"dtype": "float32", "kv_format": "fp32", "kv_scales": "none"},
        {"kv_format": DTYPE_FORMATS[spec.dtype], "kv_scales": "none"},
        {"kv_scales": "tensor"},
        {"head_size_v": 0},
        {"num_heads": spec.num_kv_heads},
        {"num_heads": spec.group_size, "num_kv_heads": 1},
        *({"head_size": n, "head_size_v": 0} for n in (1, 8, 16, 64) if n < spec.head_size),
        *({"block_size": n} for n in (1, 4, 16) if n < spec.block_size),
    ]
    for change in changes:
        try:
            plainer = replace(spec, **change)
        except InvalidInput:  # scales for a format that has none
            continue
        if plainer != spec:
            yield plainer


def _shorter_rows(problem: Problem) -> Iterator[Problem]:
    for row, (queries, keys) in enumerate(problem.rows):
        shorter = [(queries, keys // 2), (queries // 2, keys), (1, keys), (queries, keys - 1), (queries - 1, keys - 1)]
        for q, k in [*shorter, (queries - 1, keys)]:
            if 0 <= q <= queries and 0 <= k <= keys and (q, k) != (queries, keys):
                yield replace(problem, rows=(*problem.rows[:row], (q, k), *problem.rows[row + 1 :]))
