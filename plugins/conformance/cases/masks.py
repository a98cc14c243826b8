"""Cases of who sees whom: keys, causality, rows without a key, windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ....core.attention import model_window
from ..case import Draft
from ..closed_forms import probe_means
from ..ground import Ground
from ..judges import by_closed_form, closed, constant, phases, require_probe
from ..problem import Problem, Rows
from ..rig import Rig
from ..scene import block_table_of
from ..steps import Chunks, solve_in_chunks
from ..subject import Subject

BY_PROBE = by_closed_form(probe_means)
BLIND: Rows = ((5, 2), (4, 1), (1, 3), (3, 3))
"""Rows with more queries than keys: the first queries see nothing."""
WINDOWS = (1, 2, 3, 4, 5, 8, 9, 10, 100)
FEW_WINDOWS = (1, 2, 4, 9, 100)
CHUNKS: tuple[tuple[int, ...], ...] = ((9,), (6, 3), (4, 4, 1), (1,) * 9)
LONGER: tuple[tuple[int, ...], ...] = ((2, *(1,) * 10), (7, *(1,) * 5), (4, 3, *(1,) * 5), (4, 3, 5))
"""Twelve tokens in pieces, for a window that moves on."""


def keys(ground: Ground, full: bool) -> Iterator[Draft]:
    """Decode rows whose lengths lie around the ends of blocks; without causality, where that is offered."""
    size = ground.fields["block_size"]
    around: Rows = tuple((1, n) for n in sorted({1, size - 1, size, size + 1, 2 * size, 3 * size + 1, 41} - {0}))
    open_: dict[str, Any] = {"causal": False not in ground.capabilities.causal}
    yield "decode", BY_PROBE, closed(ground, around, **open_)
    yield "other-cache", BY_PROBE, replace(closed(ground, around, kv_source="cache", **open_), shared=True)
    for layout in ground.capabilities.layouts[1:]:
        yield f"decode-{layout}", BY_PROBE, replace(closed(ground, around, kv_source="cache", **open_), layout=layout)
    yield "found-by-its-logit", by_closed_form(constant(1.0)), closed(ground, around, "needle", **open_)


def causal(ground: Ground, full: bool) -> Iterator[Draft]:
    """Two queries at the end of five keys see 4 and 5 of them; aligned top-left they would see 1 and 2."""
    for name, rows in {"two-of-five": ((2, 5),), "square": ((5, 5),), "tails": ((2, 37), (1, 30))}.items():
        for source in ("cache", "ragged"):
            yield f"{name}-{source}", BY_PROBE, closed(ground, rows, causal=True, kv_source=source)
    over_the_edge: Rows = tuple((9, edge + 4) for edge in (64, 128, 256, 512, 1024))
    yield "chunks-over-the-edges-of-splits", BY_PROBE, closed(ground, over_the_edge, causal=True, kv_source="cache")
    for name, problem in phases(ground, causal=True):
        yield f"yes-{name}", BY_PROBE, problem
    for name, problem in phases(ground, causal=False):
        yield f"no-{name}", BY_PROBE, problem
    yield (
        "prefill-from-the-cache",
        BY_PROBE,
        replace(closed(ground, ((9, 9), (5, 5)), causal=True, kv_source="cache"), shared=True),
    )


def empty_rows(ground: Ground, full: bool) -> Iterator[Draft]:
    """Queries that see nothing, rows of no key and rows of no query."""
    batches: dict[str, Rows] = {
        "more-queries-than-keys": BLIND,
        "no-key": ((1, 0), (3, 0), (1, 4), (2, 2)),
        "no-query": ((1, 4), (0, 3), (2, 5), (0, 6), (3, 3)),
        "neither": ((1, 2), (0, 0), (2, 0), (4, 4)),
        "nothing-else": ((0, 0), (2, 0)),
    }
    for source in ("cache", "ragged"):
        for name, rows in batches.items():
            yield f"{name}-{source}", BY_PROBE, closed(ground, rows, causal=True, kv_source=source)


def window(ground: Ground, full: bool) -> Iterator[Draft]:
    """Windows around every length, in every phase, on both sides, and however the prompt is cut."""
    for width in WINDOWS if full else FEW_WINDOWS:
        for name, problem in phases(ground, causal=True, window=model_window(width)):
            yield f"of-{width}-{name}", BY_PROBE, problem
    for left, right in ((2, 2), (0, 3), (3, 0), (-1, 2), (2, -1)) if full else ((2, 1), (-1, 2), (2, -1)):
        for name, problem in phases(ground, causal=False, window=(left, right)):
            yield f"sides-{left}-{right}-{name}", BY_PROBE, problem
    of_four: dict[str, Any] = {"causal": True, "window": model_window(4), "kv_source": "cache"}
    for size in sorted({2, 4, 16, ground.fields["block_size"]}):
        for chunks in CHUNKS:
            name = "+".join(map(str, chunks)) if len(chunks) < 9 else "ones"
            yield (
                f"chunks-{name}-block-{size}",
                _chunked((chunks,)),
                closed(ground, ((9, 9),), **of_four, block_size=size),
            )
    for number, chunks in enumerate(LONGER):
        yield f"moves-on-{number}", _chunked((chunks,)), closed(ground, ((12, 12),), **of_four)
    size = ground.fields["block_size"]
    given_up: Rows = ((1, 3 * size + 2), (1, size + 9), (5, 2 * size + 7), (3, 3))
    yield "given-up-blocks", _given_up, replace(closed(ground, given_up, **of_four), poison="zero")
    long: Rows = ((1, 300), (1, 40), (1, 1300), (5, 130))
    yield "longer-than-it", BY_PROBE, closed(ground, long, causal=True, window=(36, 0))
    yield "as-long-as-the-row", _as_none, closed(ground, ((9, 9), (1, 9), (4, 9)), causal=True, window=model_window(9))


def _chunked(chunks: Chunks):
    def judge(subject: Subject, problem: Problem) -> None:
        result = solve_in_chunks(subject, problem, chunks, anew=True)
        require_probe(problem, result)

    return judge


def _given_up(subject: Subject, problem: Problem) -> None:
    """Blocks before every query's window went to others, and the table names the null block in their places."""
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    table = block_table_of(problem)
    for row, (queries, keys) in enumerate(problem.rows):
        first = max(0, keys - queries - 3) // problem.spec.block_size
        table[row, :first] = 0
    batch = replace(scene.batch, block_table=table.to(subject.torch_device))
    require_probe(problem, rig.forward(replace(scene, batch=batch), rig.plan(batch)))


def _as_none(subject: Subject, problem: Problem) -> None:
    """A window of S keys, one of S + 1 and none see the same."""
    spec = problem.spec
    for width in (9, 10, None):
        other = replace(problem, spec=replace(spec, window=model_window(width)))
        require_probe(problem, Rig(subject, other).solve(other))
