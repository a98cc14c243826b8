"""Cases of plans, instances, layers and graphs: what is told apart, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ....core.attention import AttentionBatch, GraphKey, GraphSupport, Mismatch
from ..broken import Skipped
from ..case import Draft
from ..ground import Ground
from ..judges import closed, require_probe
from ..problem import Problem, Rows
from ..rig import Rig, require_right
from ..shrink import Judge
from ..subject import Subject
from .numbers import formats

A: Rows = ((1, 9), (1, 4), (3, 14), (4, 21), (5, 5))
B: Rows = ((1, 4), (1, 21), (3, 9), (4, 14), (5, 5))
C: Rows = ((1, 21), (1, 14), (3, 4), (4, 9), (5, 5))
"""Each of these batches has as many rows, tokens and blocks as the others, in another order."""
ON: tuple[Rows, ...] = tuple(((1, 9 + i), (1, 6 + i), (1, 13 + i), (1, 17 + i)) for i in range(3))
"""Steps of rows that grow by a token, as decoding does."""
WIDTH = 64
"""Columns of the block tables of a graph's batches."""


def plans(ground: Ground, full: bool) -> Iterator[Draft]:
    """Batches one after the other and several in flight; instances side by side; a scribbled workspace."""
    plain = closed(ground, A, causal=True)
    yield "one-after-the-other", _one_after_the_other((A, B, C, A)), plain
    sizes: tuple[Rows, ...] = (((1, 5),), ((1, 40), (1, 3), (9, 20), (30, 30)), ((2, 2),), ((1, 7), (4, 4)))
    yield "of-other-sizes", _one_after_the_other(sizes), plain
    yield "resumed-elsewhere", _one_after_the_other(ON), plain
    for count in (2, 3):
        for order in (range(count), range(count - 1, -1, -1)):
            word = "in-order" if order[0] == 0 else "backwards"
            yield f"{count}-in-flight-{word}", _in_flight((A, B, C)[:count], list(order)), plain
    yield "two-instances", _two_instances({}), plain
    yield "two-instances-of-other-heads", _two_instances({"num_kv_heads": 3, "num_heads": 3 * ground.group}), plain
    yield "scribbled-workspace", _scribbled, plain


def layers(ground: Ground, full: bool) -> Iterator[Draft]:
    """Two layers of one plan, and instances for layers that differ."""
    yield "plain", _two_layers, ground.problem(A)
    yield "sinks", _two_layers, ground.problem(A, spec={"sinks": True})
    for kv_format, scales in formats(ground.capabilities):
        if scales != "none":
            spec = {"kv_format": kv_format, "kv_scales": scales}
            yield f"{kv_format}-{scales}", _two_layers, ground.problem(A, spec=spec)
    yield "other-scale", _two_instances({"scale": 0.8}, by_reference=True), ground.problem(A, spec={"scale": 0.3})


def graph(ground: Ground, full: bool) -> Iterator[Draft]:
    """A plan for a graph, replayed: the recorded call reads the captured plan's addresses, filled for a later batch."""
    batches: dict[GraphSupport, tuple[Rows, Rows]] = {
        GraphSupport.SINGLE_TOKEN: (((1, 9), (1, 4), (1, 1)), ((1, 3), (1, 14), (1, 20))),
        GraphSupport.UNIFORM: (((2, 9), (2, 4), (2, 6)), ((2, 3), (2, 14), (2, 20))),
        GraphSupport.ALWAYS: (A, B),
    }
    for support, (captured, replayed) in batches.items():
        name = support.name.lower().replace("_", "-")
        yield name, _replayed(support, replayed), closed(ground, captured, causal=True)
        if support < GraphSupport.ALWAYS:
            yield f"{name}-padded", _replayed(support, replayed[:2]), closed(ground, captured, causal=True)


def _one_after_the_other(batches: Sequence[Rows]) -> Judge:
    def judge(subject: Subject, problem: Problem) -> None:
        steps = [replace(problem, rows=rows, seed=i, placement=i) for i, rows in enumerate(batches)]
        rig = Rig(subject, *steps)
        for step in steps:
            require_probe(step, rig.solve(step))

    return judge


def _in_flight(batches: Sequence[Rows], order: Sequence[int]) -> Judge:
    """All plans are made, then used: with n in flight, each is valid until n further ones were made."""

    def judge(subject: Subject, problem: Problem) -> None:
        steps = [replace(problem, rows=rows, seed=i, placement=i) for i, rows in enumerate(batches)]
        rig = Rig(subject, *steps, plans_in_flight=len(steps))
        scenes = [rig.scene(step) for step in steps]
        made = [rig.plan(scene.batch) for scene in scenes]
        for i in order:
            require_probe(steps[i], rig.forward(scenes[i], made[i]))

    return judge


def _two_instances(changes: dict[str, Any], *, by_reference: bool = False) -> Judge:
    """Both are planned before either attends; they share a workspace, as the groups of one stream do."""

    def judge(subject: Subject, problem: Problem) -> None:
        other = replace(problem, spec=replace(problem.spec, **changes), rows=B, seed=1, placement=1)
        first = Rig(subject, problem)
        second = Rig(subject, other, workspace=first.workspace)
        scenes = first.scene(problem), second.scene(other)
        made = first.plan(scenes[0].batch), second.plan(scenes[1].batch)
        right = require_right if by_reference else require_probe
        right(problem, first.forward(scenes[0], made[0]))
        right(other, second.forward(scenes[1], made[1]))
        right(problem, first.forward(scenes[0], made[0]))

    return judge


def _two_layers(subject: Subject, problem: Problem) -> None:
    """Layers of one group share instance and plan; cache, sinks and scales are each one's own."""
    other = replace(problem, seed=problem.seed + 1, k_scale=0.029, v_scale=0.083)
    rig = Rig(subject, problem)
    scenes = {step: rig.scene(step) for step in (problem, other)}
    plan = rig.plan(scenes[problem].batch)
    for step in (problem, other, problem):
        require_right(step, rig.forward(scenes[step], plan))


def _scribbled(subject: Subject, problem: Problem) -> None:
    """Another group of the stream uses the workspace between plan and forward: nothing may be kept there."""
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    plan = rig.plan(scene.batch)
    for _ in range(2):
        rig.workspace.get(rig.workspace.nbytes).fill_(0xFF)
        require_probe(problem, rig.forward(scene, plan))


def _replayed(support: GraphSupport, replayed: Rows) -> Judge:
    """What a recording does, without one: the call is repeated with the captured plan after a later batch was planned.

    The batch's tensors are the engine's buffers: the later batch stands where the captured one stood, and rows of
    padding stand where it has fewer.
    """

    def judge(subject: Subject, problem: Problem) -> None:
        offered = subject.capabilities.graph
        if offered < support:
            raise Skipped(str(Mismatch(field="graph", asked=support.name.lower(), offered=offered.name.lower())))
        missing = len(problem.rows) - len(replayed)
        padding = {"padded_rows": missing, "padded_queries": replayed[0][0]} if missing else {}
        later = replace(problem, rows=replayed, seed=problem.seed + 1, placement=problem.placement + 1, **padding)
        rig = Rig(subject, problem, later, table_width=WIDTH)
        first, second = rig.scene(problem), rig.scene(later)
        key = GraphKey(padded_reqs=len(problem.rows), padded_tokens=problem.num_tokens, capturing=True)
        captured = replace(_widened(first.batch), graph=key, max_seq_len=rig.backend.limits.max_model_len)
        plan = rig.plan(captured)
        require_probe(problem, rig.forward(replace(first, batch=captured), plan))
        batch = _into(captured, _widened(second.batch), replace(key, capturing=False))
        rig.plan(batch)
        require_probe(later, rig.forward(replace(second, batch=batch), plan))

    return judge


def _widened(batch: AttentionBatch) -> AttentionBatch:
    """`batch` with null blocks behind each row of its table, up to a width that both batches of a graph have."""
    table = batch.block_table
    if table is None:
        return batch
    return replace(batch, block_table=torch.nn.functional.pad(table, (0, WIDTH - table.shape[1])))


def _into(buffers: AttentionBatch, batch: AttentionBatch, key: GraphKey) -> AttentionBatch:
    """`batch` in the device tensors of `buffers`."""
    names = ("query_start_loc", "seq_lens", "block_table", "slot_mapping", "key_start_loc")
    there: dict[str, Any] = {}
    for name in names:
        buffer, fresh = getattr(buffers, name), getattr(batch, name)
        there[name] = None if buffer is None else buffer.copy_(fresh)
    return replace(batch, graph=key, **there)
