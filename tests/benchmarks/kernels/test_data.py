"""All contenders see the same numbers, wherever their pages lie."""

from __future__ import annotations

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.benchmarks.kernels.check import TOLERANCE, expected
from headstock.benchmarks.kernels.contenders import BackendContender
from headstock.benchmarks.kernels.data import Pool, build_scene
from headstock.benchmarks.kernels.shapes import choose
from headstock.core.attention import LAYOUTS, LayerParams, NoOptions, Workspace, slots_of
from support.attention import CPU

SHAPES = choose("decode:4/2/8:3x300,prefill:4/2/8:20,chunk:4/2/8:7+30", "all", ())


@pytest.fixture(params=SHAPES, ids=lambda s: s.label)
def shape(request):
    return request.param


@pytest.fixture
def pool(shape):
    return Pool.of(shape.heads, "float32", [shape])


def test_the_pieces_of_a_sequence_are_its_tokens():
    pool = Pool((4, 2, 8), "float32", tokens=300, queries=1)
    for sequence in range(3):
        keys, values = pool.tokens(sequence, 0, 300)
        for tokens, rows in pool.pieces(sequence, 300):
            assert torch.equal(keys[tokens], pool.keys[rows])
            assert torch.equal(values[tokens], pool.values[rows])
    assert [s.start for s, _ in pool.pieces(1, 300)] == [0, 49], "sequence 1 starts at row 251 of 300"


def test_sequences_differ_from_each_other():
    pool = Pool((4, 2, 8), "float32", tokens=64, queries=1)
    first, second = pool.tokens(0, 0, 64)[0], pool.tokens(1, 0, 64)[0]
    assert not (first == second).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cache_holds_every_sequence_in_shuffled_blocks(shape, pool, layout):
    spec = shape.spec("float32", 16)
    scene = build_scene(shape, pool, spec, LAYOUTS[layout], instance(spec), 1)
    table = scene.batch.block_table
    assert sorted(table.flatten().tolist()) == list(range(1, table.numel() + 1)), "the null block is nobody's"
    assert table.flatten().tolist() != sorted(table.flatten().tolist())
    for row in range(shape.batch):
        slots = slots_of(table[row], shape.length, 16)
        keys, values = scene.cache.layout.gather(scene.cache, LayerParams(name="x", spec=spec), slots, torch.float32)
        assert torch.equal(keys, pool.tokens(row, 0, shape.length)[0])
        assert torch.equal(values, pool.tokens(row, 0, shape.length)[1])


def test_the_steps_own_rows_are_the_last_tokens(shape, pool):
    spec = shape.spec("float32", 16)
    scene = build_scene(shape, pool, spec, LAYOUTS["nhd"], instance(spec), 1)
    last = [pool.tokens(row, shape.length - shape.queries, shape.length)[0] for row in range(shape.batch)]
    assert torch.equal(scene.key, torch.cat(last))
    keys = scene.cache.layout.gather_rows(scene.cache.k, scene.batch.slot_mapping, 16)
    assert torch.equal(keys, scene.key)


def test_the_batch_is_sorted_as_the_backend_counts(shape, pool):
    spec = shape.spec("float32", 16)
    counts = build_scene(shape, pool, spec, LAYOUTS["nhd"], instance(spec), 1).batch.counts
    found = {"decode": counts.decodes, "chunk": counts.extends, "prefill": counts.prefills}
    assert found == {"decode": 0, "chunk": 0, "prefill": 0, shape.phase: shape.batch}


def test_what_is_expected_is_what_torch_computes(shape, pool):
    """Against another implementation, in float64."""
    exact = expected(shape, pool, "float32")
    assert len(exact.tokens) >= 2
    for token, row in zip(exact.tokens, exact.rows, strict=True):
        sequence, query = divmod(token, shape.queries)
        keys, values = pool.tokens(sequence, 0, shape.length - shape.queries + query + 1)
        k, v = (x.double().transpose(0, 1).repeat_interleave(2, 0) for x in (keys, values))
        q = pool.queries[token].double()[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        assert torch.allclose(row, out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_right_backend_has_a_small_error(shape, dtype):
    pool = Pool.of(shape.heads, dtype, [shape])
    contender = BackendContender(
        "x", ReferenceBackend, NoOptions(), shape.spec(dtype, 16), LAYOUTS["hnd"], CPU, shape, pool
    )
    exact = expected(shape, pool, dtype)
    assert exact.error(contender.start(1).out) < TOLERANCE[dtype] / 2
    contender.close()


def test_an_output_with_a_hole_or_a_wrong_page_is_wrong(shape, pool):
    exact = expected(shape, pool, "float32")
    out = torch.zeros(shape.tokens, 4, 8)
    out[list(exact.tokens)] = exact.rows.float()
    assert exact.problem(exact.error(out)) == ""
    hole = out.clone()
    hole[shape.tokens // 2, 1, 3] = float("nan")
    assert exact.problem(exact.error(hole)) == "wrong: the output is not finite everywhere"
    turned = out.roll(1, dims=1)  # every head answers for the one before it
    assert "against the float64 reference, allowed is 1e-04" in exact.problem(exact.error(turned))


def instance(spec):
    return lambda limits: ReferenceBackend(spec, CPU, limits, Workspace("cpu"))
