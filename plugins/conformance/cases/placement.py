"""Metamorphic cases: what may change without changing a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..case import Draft
from ..closed_forms import probe_means
from ..ground import Ground
from ..judges import by_closed_form, by_reference, closed, require_alike, require_probe
from ..oracle import tolerance_of
from ..problem import Problem, Rows
from ..rig import Result, Rig
from ..shrink import Judge
from ..steps import Chunks, solve_in_chunks
from ..subject import Subject

PIECES: dict[str, Chunks] = {
    "one-by-one": ((1,) * 13,),
    "halves": ((7, 6),),
    "decode-after-prefill": ((9, 1, 1, 1, 1),),
    "three-rows": ((5, 5, 3), (2, 1, 1, 1), (13,)),
    "long": ((64, 64, 5), (100, 1, 1), (33,)),
}


def chunks(ground: Ground, full: bool) -> Iterator[Draft]:
    """Prompts in pieces, each piece written by the backend before it attends to it."""
    for name, pieces in PIECES.items():
        rows: Rows = tuple((sum(sizes), sum(sizes)) for sizes in pieces)
        yield f"{name}-probe", _in_pieces(pieces, by_probe=True), closed(ground, rows, causal=True, kv_source="cache")
        for layout in ground.capabilities.layouts if full or name != "long" else ():
            problem = ground.problem(rows, spec={"causal": True, "kv_source": "cache"}, layout=layout)
            yield f"{name}-{layout}", _in_pieces(pieces), problem


def placement(ground: Ground, full: bool) -> Iterator[Draft]:
    """Blocks in any order, in a row, and backwards: the same bits. Other layouts: right as well."""
    batches: dict[str, Rows] = {
        "short": ((1, 29), (1, 29), (4, 29), (6, 6)),
        "long": ((1, 300), (1, 270), (1, 40), (5, 280)),
        "prefill": ((40, 40), (7, 7)),
    }
    for name, rows in batches.items():
        problem = ground.problem(rows, spec={"kv_source": "cache"})
        yield f"{name}-shuffled", _moved((1, 2)), problem
        yield f"{name}-in-a-row", _moved((-1,)), problem
        yield f"{name}-backwards", _moved((-2,)), problem
        for layout in ground.capabilities.layouts[1:]:
            yield f"{name}-{layout}", _moved((1, -1, -2)), replace(problem, layout=layout)


def neighbours(ground: Ground, full: bool) -> Iterator[Draft]:
    """A row beside others: right, all of them, and where that is declared the same bits as alone."""
    for count in (1, 7, 31):
        for phase, row in {"decode": (1, 29), "extend": (4, 29), "prefill": (9, 9)}.items():
            beside: Rows = {
                "decode": tuple((1, 3 + i) for i in range(count)),
                "extend": tuple((2 + i % 3, 11 + i) for i in range(count)),
                "prefill": tuple((3 + i % 5, 3 + i % 5) for i in range(count)),
            }[phase]
            yield f"{phase}-{count}", by_closed_form(probe_means), closed(ground, (row, *beside), causal=True)
            yield f"bits-{phase}-{count}", _beside(beside), ground.problem((row,), spec={"batch_invariant": True})
    many: Rows = tuple((1, 1 + i % 7) for i in range(260))
    yield "decode-259", by_reference, ground.problem(many)
    longer: Rows = ((1, 280), (1, 400), (3, 33))
    for layout in ground.capabilities.layouts:
        spec = {"batch_invariant": True, "kv_source": "cache"}
        yield f"bits-long-{layout}", _beside(longer), ground.problem(((1, 300),), spec=spec, layout=layout)
        yield f"bits-in-splits-{layout}", _beside(longer), ground.problem(((1, 1300),), spec=spec, layout=layout)


def _in_pieces(pieces: Chunks, *, by_probe: bool = False) -> Judge:
    def judge(subject: Subject, problem: Problem) -> None:
        result = solve_in_chunks(subject, problem, pieces)
        if by_probe:
            require_probe(problem, result)
        else:
            require_alike("in pieces", Rig(subject, problem).solve(problem), result, tolerance_of(problem))

    return judge


def _moved(placements: tuple[int, ...]) -> Judge:
    def judge(subject: Subject, problem: Problem) -> None:
        first = Rig(subject, problem).solve(problem)
        for seed in placements:
            moved = replace(problem, placement=seed)
            require_alike("with blocks elsewhere", first, Rig(subject, moved).solve(moved))

    return judge


def _beside(rows: Rows) -> Judge:
    """The problem's only row comes first in the batch; it is the same row, since a row's data are its own."""

    def judge(subject: Subject, problem: Problem) -> None:
        batch = replace(problem, rows=problem.rows + rows)
        alone, together = (Rig(subject, p).solve(p) for p in (problem, batch))
        part = Result(out=together.out[: problem.num_tokens], lse=None)
        require_alike(f"beside {len(rows)} others", alone, part)

    return judge
