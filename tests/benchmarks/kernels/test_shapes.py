"""Shapes, their labels and their work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstock.benchmarks.kernels.shapes import (
    Shape,
    choose,
    default_grid,
    model_grid,
    overhead_shapes,
    quick_grid,
    shape,
)
from headstock.core.attention import AttentionSpec
from headstock.core.errors import InvalidInput

GRID = default_grid()


def only(words, phase="all", grid=GRID):
    (found,) = choose(words, phase, grid)
    return found


def test_the_default_grid_has_both_models_all_batches_contexts_prefills_and_the_chunk():
    for heads in ("9/3/64", "32/8/128"):
        labels = {s.label for s in GRID if s.label.split(":")[1] == heads}
        decodes = {f"decode:{heads}:{batch}x{context}" for batch in (1, 16, 64) for context in ("1k", "4k", "16k")}
        assert labels == decodes | {f"prefill:{heads}:512", f"prefill:{heads}:2k", f"chunk:{heads}:256+4k"}
    assert len(GRID) == 24


@pytest.mark.parametrize("one", [*GRID, *quick_grid()], ids=lambda s: s.label)
def test_a_label_means_the_shape_it_is_the_label_of(one):
    assert only(one.label) == one


def test_sizes_of_a_label():
    assert only("decode:9/3/64:16x4k") == Shape(
        phase="decode", num_heads=9, num_kv_heads=3, head_size=64, batch=16, length=4096
    )
    assert only("prefill:4/2/8:100") == shape("prefill", (4, 2, 8), queries=100, length=100)
    assert only("chunk:4/2/8:256+4k") == shape("chunk", (4, 2, 8), queries=256, length=4352)


def test_bytes_are_those_of_all_keys_and_values_once():
    assert only("decode:9/3/64:16x4k").kv_bytes("float32") == 16 * 4096 * 2 * 3 * 64 * 4
    assert only("decode:9/3/64:16x4k").kv_bytes("bfloat16") == 16 * 4096 * 2 * 3 * 64 * 2


@pytest.mark.parametrize(
    ("label", "pairs"), [("decode:1/1/8:2x5", 2 * 5), ("prefill:1/1/8:3", 1 + 2 + 3), ("chunk:1/1/8:3+4", 5 + 6 + 7)]
)
def test_operations_are_four_a_channel_of_each_pair_that_causality_allows(label, pairs):
    assert only(label).flops == 4 * 8 * pairs


def test_patterns_and_phases_choose_from_the_grid():
    assert {s.label for s in choose("*:64x1k", "all", GRID)} == {"decode:9/3/64:64x1k", "decode:32/8/128:64x1k"}
    assert {s.phase for s in choose(None, "chunk", GRID)} == {"chunk"}
    assert len(choose("decode:9/3/64:1x1k, decode:9/*:1x1k", "all", GRID)) == 1, "nothing is measured twice"


@pytest.mark.parametrize(
    ("words", "phase", "message"),
    [
        ("decode:9/3/64", "all", "neither a pattern nor a shape such as decode:9/3/64:16x4k"),
        ("decode:9/3/64:4k", "all", "decode is BATCHxCONTEXT"),
        ("prefill:9/3/64:1x4k", "all", "prefill TOKENS"),
        ("decode:9/2/64:1x4k", "all", "query heads a multiple of KV heads"),
        ("decode:9/3/64:0x4k", "all", "sizes are at least 1"),
        ("encode:*", "all", "no shape of the grid fits 'encode:.*'; they are decode:9/3/64:1x1k"),
        ("decode:*", "prefill", "none is left of phase prefill"),
        (None, "prefil", "'prefil' is not one of decode, prefill, chunk, all"),
    ],
)
def test_what_is_no_shape_is_refused(words, phase, message):
    with pytest.raises(InvalidInput, match=message):
        choose(words, phase, GRID)


def test_overheads_are_measured_once_a_head_count():
    assert [s.label for s in overhead_shapes(GRID)] == ["decode:9/3/64:1x1", "decode:32/8/128:1x1"]


FEATURES = AttentionSpec(
    num_heads=4, num_kv_heads=2, head_size=8, dtype="bfloat16", window=(3, 0), softcap=30.0, scale=0.5, sinks=True
)


def test_a_layers_features_are_in_its_label_and_its_work():
    (decode,) = [s for s in model_grid([FEATURES]) if s.label.startswith("decode:4/2/8:16x1k")]
    assert decode.label == "decode:4/2/8:16x1k+window=4+softcap=30+scale=0.5+sinks"
    assert decode.kv_bytes("float32") == 16 * 4 * 2 * 2 * 8 * 4  # 4 keys are seen
    assert decode.flops == 4 * 4 * 8 * 16 * 4
    spec = decode.spec("float32", 32)
    assert (spec.window, spec.kv_format, spec.block_size) == ((3, 0), "fp32", 32)
    prefill = Shape(phase="prefill", num_heads=4, num_kv_heads=2, head_size=8, queries=6, length=6, layer=FEATURES)
    assert prefill.flops == 4 * 4 * 8 * (1 + 2 + 3 + 4 + 4 + 4)
    chunk = Shape(phase="chunk", num_heads=4, num_kv_heads=2, head_size=8, queries=2, length=100, layer=FEATURES)
    assert chunk.kv_bytes("float32") == 5 * 2 * 2 * 8 * 4


def test_layers_that_differ_in_their_blocks_alone_are_one():
    assert len(model_grid([FEATURES, replace(FEATURES, block_size=64)])) == 4
