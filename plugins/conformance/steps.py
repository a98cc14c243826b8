"""A prompt computed piece by piece over one cache, as an engine does it: write, then attend, step after step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .problem import Problem
from .rig import Result, Rig
from .scene import Scene, batch_of, block_table_of, to_device
from .subject import Subject

Chunks = tuple[tuple[int, ...], ...]
"""For each row of a problem, its queries in pieces."""


def solve_in_chunks(subject: Subject, problem: Problem, chunks: Chunks, *, anew: bool = False) -> Result:
    """The problem's result, put together from steps: in step i each row that has an i-th piece computes it.

    The cache holds nothing beforehand: the backend writes what it will read. Rows have as many queries as keys.
    `anew` makes an instance for each step.
    """
    rig = Rig(subject, problem)
    short = subject.capabilities.decode_query_len
    whole = rig.scene(problem, written="nothing")
    done = [0] * len(chunks)
    pieces: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in chunks]
    for step in range(max(map(len, chunks))):
        rows = [row for row, sizes in enumerate(chunks) if step < len(sizes)]
        rows.sort(key=lambda row: 2 if done[row] == 0 else int(chunks[row][step] > short))  # decode, extend, prefill
        if anew:
            rig = Rig(subject, problem)
            rig.bind(whole)
        scene = _step(whole, rows, [(chunks[row][step], done[row]) for row in rows], subject)
        plan = rig.plan(scene.batch)
        rig.write(scene)
        result = rig.forward(scene, plan)
        start = 0
        for row in rows:
            size = chunks[row][step]
            part = slice(start, start + size)
            pieces[row].append((result.out[part], None if result.lse is None else result.lse[part]))
            start, done[row] = start + size, done[row] + size
    everything = [piece for row in pieces for piece in row]
    lses = [lse for _, lse in everything if lse is not None]
    return Result(out=torch.cat([out for out, _ in everything]), lse=torch.cat(lses) if lses else None)


def _step(whole: Scene, rows: list[int], pieces: list[tuple[int, int]], subject: Subject) -> Scene:
    """The scene of one step: pieces are (queries, keys before them) of `rows` of the whole problem."""
    problem, data = whole.problem, whole.data
    device = subject.torch_device
    step = replace(problem, rows=tuple((size, done + size) for size, done in pieces))
    table = block_table_of(problem)[rows]
    batch = batch_of(step, table, decode_query_len=subject.capabilities.decode_query_len)
    starts = [sum(keys for _, keys in problem.rows[:row]) for row in rows]
    query = torch.cat(
        [data.queries[start + done : start + done + size] for start, (size, done) in zip(starts, pieces, strict=True)]
    )
    key, value = (
        torch.cat([x[row][done : done + size] for row, (size, done) in zip(rows, pieces, strict=True)]).to(device)
        for x in (data.keys, data.values)
    )
    return replace(whole, problem=step, batch=to_device(batch, device), query=query.to(device), key=key, value=value)
