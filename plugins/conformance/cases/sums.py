"""Cases of heads and of sums over keys: which head, log-sum-exp, sinks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..case import Draft
from ..closed_forms import probe_lse, probe_means, probe_with_sinks
from ..ground import GROUPS, Ground, samples
from ..judges import IN_SPLITS, PHASES, by_closed_form, by_reference, closed, phases
from ..oracle import expected, require_close, tolerance_of
from ..problem import Problem, Rows
from ..rig import Rig
from ..scene import batch_of, to_device
from ..subject import Subject

LONG: Rows = ((1, 70), (1, 33), (4, 40), (21, 21))


def heads(ground: Ground, full: bool) -> Iterator[Draft]:
    """V tells the KV head; groups and numbers of KV heads that tiling would map otherwise."""
    for group in samples(ground.capabilities.group_sizes, GROUPS)[: None if full else 4]:
        for kv_heads in (2, 3):
            for phase, problem in phases(ground, "heads", num_heads=kv_heads * group, num_kv_heads=kv_heads):
                if full or phase in ("decode", "extend") or group == ground.group:
                    yield f"{kv_heads}x{group}-{phase}", by_closed_form(_head_of_group), problem
    for kv_heads in (1, 3, 4):
        yield f"random-{kv_heads}", by_reference, ground.problem(spec={"num_kv_heads": kv_heads})


def lse(ground: Ground, full: bool) -> Iterator[Draft]:
    """ln of the number of keys; more tokens than heads and fewer; merges of two parts."""
    for causal in (True, False):
        for phase, problem in phases(ground, causal=causal, lse=True):
            yield f"{'causal' if causal else 'all'}-{phase}", by_closed_form(probe_means, probe_lse), problem
    for source in ("cache", "ragged"):
        blind = closed(ground, ((5, 2), (4, 1), (1, 3), (3, 3)), causal=True, kv_source=source, lse=True)
        yield f"more-queries-than-keys-{source}", by_closed_form(probe_means, probe_lse), blind
    yield (
        "no-key",
        by_closed_form(probe_means, probe_lse),
        closed(ground, ((1, 0), (2, 0), (1, 4)), causal=True, lse=True),
    )
    yield "six-keys", by_closed_form(probe_means, probe_lse), closed(ground, ((1, 6),), lse=True)
    yield "huge", by_reference, closed(ground, PHASES["mixed"], "huge", lse=True)
    yield "in-splits", by_closed_form(probe_means, probe_lse), closed(ground, IN_SPLITS, causal=True, lse=True)
    yield "random", by_reference, ground.problem(LONG, spec={"lse": True})
    yield "softcap", by_reference, ground.problem(LONG, spec={"lse": True, "softcap": 1.0, "scale": 0.9})
    yield "window", by_reference, ground.problem(LONG, spec={"lse": True, "causal": True, "window": (5, 0)})
    yield "ragged", by_reference, ground.problem(LONG, spec={"lse": True, "kv_source": "ragged"})
    size = ground.fields["block_size"]
    rows: Rows = ((1, size + 2), (1, 3 * size + 1))
    for fill in ("probe", "normal"):
        yield (
            f"merges-{fill}",
            _merges,
            ground.problem(rows, spec={"lse": True, "kv_source": "cache"}, fill=fill, shared=True),
        )


def sinks(ground: Ground, full: bool) -> Iterator[Draft]:
    """Equal weights beside a sink: in every phase, behind windows, without keys, one for each query head."""
    probe = by_closed_form(_sink_out, _sink_lse)
    for lse_too in (False, True):
        word = "-lse" if lse_too else ""
        for value, name in ((0.0, "zero"), (math.log(2), "ln2"), (None, "by-head")):
            for phase, problem in phases(ground, sinks=True, causal=True, lse=lse_too):
                if full or not lse_too or name == "by-head":
                    yield f"{name}-{phase}{word}", probe, replace(problem, sink=value)
        yield (
            f"window{word}",
            probe,
            closed(ground, ((1, 30), (1, 2), (6, 40)), sinks=True, causal=True, window=(2, 0), lse=lse_too),
        )
        for name, window in {"": None, "-behind-a-window": (2, 0)}.items():  # e^7 is the weight of 1097 keys
            in_splits = closed(ground, IN_SPLITS, sinks=True, causal=True, window=window, lse=lse_too)
            yield f"in-splits{name}{word}", probe, replace(in_splits, sink=1.0 if window else 7.0)
        for source in ("cache", "ragged"):
            rows: Rows = ((4, 2), (3, 3))
            yield (
                f"more-queries-than-keys-{source}{word}",
                probe,
                closed(ground, rows, sinks=True, causal=True, kv_source=source, lse=lse_too),
            )
        yield f"no-key{word}", probe, closed(ground, ((1, 0), (1, 3)), sinks=True, causal=True, lse=lse_too)
        yield f"random{word}", by_reference, ground.problem(LONG, spec={"sinks": True, "lse": lse_too})
    yield "softcap", by_reference, ground.problem(LONG, spec={"sinks": True, "softcap": 0.7, "scale": 0.9})
    yield (
        "large",
        by_closed_form(_sink_out, _sink_lse),
        replace(closed(ground, PHASES["mixed"], sinks=True, causal=True), sink=200.0),
    )


def _head_of_group(problem: Problem) -> Tensor:
    spec = problem.spec
    values = 1.0 + torch.arange(spec.num_heads, dtype=torch.float64) // spec.group_size
    return values[None, :, None]


def _sink_out(problem: Problem) -> Tensor:
    return probe_with_sinks(problem)[0]


def _sink_lse(problem: Problem) -> Tensor:
    return probe_with_sinks(problem)[1]


def _merges(subject: Subject, problem: Problem) -> None:
    """Decode rows attend to their first block and to the rest, apart; merged by their LSEs, that is the whole."""
    size = problem.spec.block_size
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    table = scene.batch.block_table
    assert table is not None, "the problem has a cache"
    parts: list[tuple[Tensor, Tensor]] = []
    for first, rows in ((0, [(1, size) for _ in problem.rows]), (1, [(1, keys - size) for _, keys in problem.rows])):
        batch = batch_of(replace(problem, rows=tuple(rows)), table[:, first:].cpu())
        result = rig.forward(part := replace(scene, batch=to_device(batch, subject.torch_device)), rig.plan(part.batch))
        assert result.lse is not None, "the spec asks for it"
        parts.append((result.out.double(), result.lse.double()))
    (out_a, lse_a), (out_b, lse_b) = parts
    total = torch.logaddexp(lse_a, lse_b)
    merged = out_a * torch.exp(lse_a - total)[:, :, None] + out_b * torch.exp(lse_b - total)[:, :, None]
    right, bounds = expected(problem), tolerance_of(problem)
    require_close("out of two parts, merged by LSE,", merged, right.out, 4 * bounds.out)
    require_close("LSE of two parts, merged,", total, right.lse, 2 * bounds.lse)
