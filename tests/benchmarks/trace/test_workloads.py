"""Whatever rows and pages a step has, its workload computes what the step did, and comes back as the same step."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstock.benchmarks.trace.evaluation import inputs_of, reference_run
from headstock.benchmarks.trace.forms import RAGGED
from headstock.benchmarks.trace.solution import TraceAttention
from headstock.benchmarks.trace.workloads import Workload, step_workloads
from headstock.core.attention import AttentionSpec
from headstock.core.attention.reference import attend_sequence
from headstock.core.live import RecordedStep, RecordedTensors, TapedGroup

HEADS, KV_HEADS, SIZE = 4, 2, 8
CLOSE = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""A rounding of the output, relative to 1."""


@st.composite
def steps(draw) -> RecordedStep:
    """Rows over pages in any order, the first of which several rows may share."""
    block, dtype = draw(st.integers(1, 5)), draw(st.sampled_from(sorted(CLOSE)))
    counts = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 17)), min_size=1, max_size=4))
    rows = [(new, new + context) for new, context in counts]
    width = max(-(-keys // block) for _, keys in rows)
    ids = draw(st.permutations(range(1, len(rows) * width + 1)))
    table = torch.tensor(ids, dtype=torch.int32).view(len(rows), width)
    shared = draw(st.integers(0, min(keys // block for _, keys in rows)))
    table[:, :shared] = table[0, :shared].clone()
    for row, (_, keys) in enumerate(rows):
        table[row, -(-keys // block) :] = 0
    window = draw(st.none() | st.integers(1, 9))
    spec = AttentionSpec(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=SIZE,
        dtype=dtype,
        block_size=block,
        window=None if window is None else (window - 1, 0),
        softcap=draw(st.none() | st.just(1.5)),
        scale=draw(st.sampled_from([0.25, 1.0])),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    cache = torch.randn(2, int(table.max()) + 1, block, KV_HEADS, SIZE, generator=generator).to(getattr(torch, dtype))
    seen = [cache[:, table[row].long()].flatten(1, 2)[:, :keys] for row, (_, keys) in enumerate(rows)]
    queries = torch.randn(sum(new for new, _ in rows), HEADS, SIZE, generator=generator).to(cache.dtype)
    key, value = torch.cat(seen, dim=1)
    tensors = RecordedTensors(group=0, layer="layer", query=queries, key=key, value=value)
    starts = [0]
    for new, _ in rows:
        starts.append(starts[-1] + new)
    return RecordedStep(
        number=1,
        time_ns=0,
        groups=(TapedGroup(kv_group=0, spec=spec, backend="cpu", layers=("layer",)),),
        query_start_loc=(tuple(starts),),
        seq_lens=(tuple(keys for _, keys in rows),),
        block_tables=(table,),
        tensors=[tensors],
    )


def exact(step: RecordedStep) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 output and LSE to base 2, row after row."""
    (vectors,), spec = step.tensors, step.groups[0].spec
    outputs, sums, first, keys = [], [], 0, 0
    for new, length in step.rows(0):
        seen = slice(keys, keys + length)
        out, lse = attend_sequence(vectors.query[first : first + new], vectors.key[seen], vectors.value[seen], spec)
        outputs.append(out)
        sums.append(lse / math.log(2))
        first, keys = first + new, keys + length
    return torch.cat(outputs), torch.cat(sums)


def workload_of(step: RecordedStep) -> Workload:
    (found,) = step_workloads(step, frozenset({0}))
    return found


@settings(max_examples=60)
@given(steps())
def test_reference_and_solution_compute_what_the_step_did(step: RecordedStep) -> None:
    workload, (output, sums) = workload_of(step), exact(step)
    solution = TraceAttention("reference", workload.form.name)
    for run in (reference_run(workload), solution):
        given_output, given_sums = run(*inputs_of(workload))
        assert str(given_output.dtype) == f"torch.{workload.form.dtype}"
        assert torch.allclose(given_output.double(), output, atol=CLOSE[workload.form.dtype], rtol=8e-3)
        assert torch.allclose(given_sums.double(), sums, atol=1e-5, rtol=1e-5)


@settings(max_examples=60)
@given(steps())
def test_pages_are_those_of_the_rows_and_shared_ones_stay_shared(step: RecordedStep) -> None:
    workload, table, rows = workload_of(step), step.block_tables[0], step.rows(0)
    assert table is not None
    if workload.form.kind == RAGGED:
        assert workload.axes["total_kv"] == sum(keys for _, keys in rows)
        return
    block = step.groups[0].spec.block_size
    blocks = [table[row, : -(-keys // block)].tolist() for row, (_, keys) in enumerate(rows)]
    assert workload.num_pages == len({b for row in blocks for b in row})
    starts, pages = workload.tensors["kv_indptr"].tolist(), workload.tensors["kv_indices"].tolist()
    names = dict(zip((b for row in blocks for b in row), pages, strict=True))
    assert [pages[a:b] for a, b in pairwise(starts)] == [[names[b] for b in row] for row in blocks]
    assert sorted(names.values()) == list(range(workload.num_pages))
