"""Cases of memory: what may not be seen, what may not be hidden, what may not be written, how tensors may lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....core.attention.cache import storage_dtype
from ..broken import Skipped
from ..case import Draft
from ..closed_forms import probe_means
from ..ground import ROWS, Ground
from ..judges import IN_SPLITS, PHASES, by_closed_form, closed, require_alike, runs
from ..oracle import expected, require_close, tolerance_of
from ..problem import Problem, Rows
from ..rig import Result, Rig
from ..subject import Subject

LENGTHS = (13, 1, 4, 5, 70)
"""Of which some end within a block and some with one."""


def determinism(ground: Ground, full: bool) -> Iterator[Draft]:
    """The same call twice."""
    long: Rows = ((1, 300), (1, 33), (4, 40), (21, 21))
    for name, rows in {"small": ROWS, "long": long, "in-splits": IN_SPLITS}.items():
        for source in ("cache", "ragged"):
            yield f"{name}-{source}", _twice, ground.problem(rows, spec={"kv_source": source})


def unowned(ground: Ground, full: bool) -> Iterator[Draft]:
    """NaN and both infinities instead of zeros in the null block, in spare blocks and behind the ends of rows."""
    for poison in ("nan", "inf", "-inf"):
        for queries in (1, 4):
            rows: Rows = tuple((min(queries, keys), keys) for keys in LENGTHS)
            for name, spec in {
                "": {},
                "-window": {"causal": True, "window": (2, 0)},
                "-all": {"causal": False},
            }.items():
                problem = ground.problem(rows, spec={"kv_source": "cache", **spec}, poison=poison)
                yield f"{poison}-{'decode' if queries == 1 else 'extend'}{name}", _as_if_clean, problem
        yield (
            f"{poison}-prefill",
            _as_if_clean,
            ground.problem(((5, 5), (70, 70)), spec={"kv_source": "cache"}, poison=poison),
        )


def nan(ground: Ground, full: bool) -> Iterator[Draft]:
    """NaN in the first key or value of a row, which all of its queries see, or in its last query."""
    for phase, rows in {"decode": ((1, 6), (1, 9)), "extend": ((3, 9), (2, 7)), "prefill": ((6, 6), (4, 4))}.items():
        for what in ("query", "key", "value"):
            yield f"in-a-{what}-{phase}", _visible, ground.problem(rows, spec={"causal": True}, fill=f"nan_{what}")


def bounds(ground: Ground, full: bool) -> Iterator[Draft]:
    """Odd numbers of tokens and heads, whose last vector is not a whole one. Every other case watches as well."""
    for phase, rows in PHASES.items():
        yield phase, runs, ground.problem(rows, spec={"num_kv_heads": 3, "kv_source": "cache"}, strided=True)
    yield "ragged", runs, ground.problem(PHASES["mixed"], spec={"kv_source": "ragged"}, strided=True)
    yield "lse", runs, ground.problem(PHASES["mixed"], spec={"lse": True}, strided=True)


def inputs(ground: Ground, full: bool) -> Iterator[Draft]:
    """Forward after forward over one cache. Every other case watches as well."""
    for phase, rows in PHASES.items():
        yield phase, runs, ground.problem(rows, spec={"kv_source": "cache"})
    yield "scaled", runs, ground.problem(spec={"scale": 0.3})


def strides(ground: Ground, full: bool) -> Iterator[Draft]:
    """q, k, v and out as parts of wider tensors; a batch cut out of a larger one: as with contiguous ones."""
    for phase, rows in PHASES.items():
        yield phase, _as_if_contiguous, ground.problem(rows, spec={"kv_source": "cache"})
    yield "ragged", _as_if_contiguous, ground.problem(PHASES["mixed"], spec={"kv_source": "ragged"})
    yield "lse", _as_if_contiguous, ground.problem(spec={"lse": True})
    yield "one-head", _as_if_contiguous, ground.problem(spec={"num_kv_heads": 1})
    yield "table", _as_if_in_one_piece, ground.problem(PHASES["mixed"], spec={"kv_source": "cache"})
    rows: Rows = ((1, 9), (1, 4), (3, 8), (2, 6), (5, 5))
    for first, last in ((0, 2), (1, 4), (2, 5)):
        yield f"rows-{first}-{last}", _SubBatch(first, last), ground.problem(rows, spec={"kv_source": "cache"})


def ragged(ground: Ground, full: bool) -> Iterator[Draft]:
    """Rows of one query each, over keys that are the step's own: as many as queries, and more."""
    batches: dict[str, Rows] = {
        "one-each": ((1, 1), (1, 1), (1, 1)),
        "more": ((1, 9), (1, 5), (1, 31)),
        "one-row": ((1, 17),),
    }
    causal = False not in ground.capabilities.causal
    for name, rows in batches.items():
        yield name, by_closed_form(probe_means), closed(ground, rows, causal=causal, kv_source="ragged")


def padding(ground: Ground, full: bool) -> Iterator[Draft]:
    """Rows past `num_reqs`, without query tokens and with one each."""
    for phase, rows in PHASES.items():
        for each in (0, 1):
            problem = closed(ground, rows, causal=True, kv_source="cache")
            yield f"{phase}-{each}", by_closed_form(probe_means), replace(problem, padded_rows=3, padded_queries=each)
    yield (
        "lse",
        runs,
        ground.problem(PHASES["mixed"], spec={"lse": True, "kv_source": "cache"}, padded_rows=5, padded_queries=1),
    )


def lengths(ground: Ground, full: bool) -> Iterator[Draft]:
    """The host knows only that no row is longer than so much."""
    for phase, rows in PHASES.items():
        problem = closed(ground, rows, causal=True, kv_source="cache")
        yield phase, by_closed_form(probe_means), replace(problem, loose=True)
    long = closed(ground, ((1, 40), (1, 9), (5, 23)), causal=True, kv_source="cache")
    yield "long", by_closed_form(probe_means), replace(long, loose=True)


def _twice(subject: Subject, problem: Problem) -> None:
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    one, two = (rig.forward(scene, rig.plan(scene.batch)) for _ in range(2))
    require_alike("the second time", one, two)


def _visible(subject: Subject, problem: Problem) -> None:
    if not storage_dtype(problem.spec).is_floating_point:
        raise Skipped(f"{problem.spec.kv_format} holds no NaN")
    result = Rig(subject, problem).solve(problem)
    require_close("NaN in out", result.out.isnan(), expected(problem).out.isnan(), 0.0)


def _as_if_clean(subject: Subject, problem: Problem) -> None:
    clean, dirty = (Rig(subject, problem).solve(p) for p in (replace(problem, poison="zero"), problem))
    require_alike(f"with {problem.poison} in slots that no sequence owns", clean, dirty)


def _as_if_contiguous(subject: Subject, problem: Problem) -> None:
    plain, strided = (Rig(subject, p).solve(p) for p in (problem, replace(problem, strided=True)))
    require_alike("of strided tensors", plain, strided, tolerance_of(problem))


def _as_if_in_one_piece(subject: Subject, problem: Problem) -> None:
    """The block table is a part of a wider one, which names the null block elsewhere."""
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    plain = rig.forward(scene, rig.plan(scene.batch))
    table = scene.batch.block_table
    assert table is not None, "the problem has a cache"
    wider = table.new_zeros(len(table), table.shape[1] + 3)
    wider[:, 1:-2] = table
    batch = replace(scene.batch, block_table=wider[:, 1:-2])
    result = rig.forward(replace(scene, batch=batch), rig.plan(batch))
    require_alike("of a block table in a wider one", plain, result, tolerance_of(problem))


class _SubBatch:
    """Rows first ≤ r < last of a step, as a composite hands them on."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last

    def __call__(self, subject: Subject, problem: Problem) -> None:
        part = replace(problem, rows=problem.rows[self._first : self._last])
        rig = Rig(subject, problem)
        scene = rig.scene(problem)
        start, stop = scene.batch.tokens(self._first, self._last)
        scene = replace(
            scene,
            problem=part,
            batch=scene.batch.rows(self._first, self._last),
            query=scene.query[start:stop],
            key=scene.key[start:stop],
            value=scene.value[start:stop],
        )
        result = rig.forward(scene, rig.plan(scene.batch))
        whole = Result(out=Rig(subject, problem).solve(problem).out[start:stop], lse=None)
        require_alike("of a part of the batch", whole, result, tolerance_of(problem))
