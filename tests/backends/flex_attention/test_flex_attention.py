"""flex_attention, on the CPU as it is: the kit, extra masks, and once through the compiler."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstock.backends.flex_attention import FlexAttention
from headstock.backends.flex_attention import backend as module
from headstock.backends.reference import ReferenceBackend
from headstock.core.attention import AttentionMask, Capabilities, LayerParams
from headstock.selector.profiles import profile
from support.attention import CPU, Scene, make, make_batch, run, uniform_spec
from support.conforming import failed, outcomes, passed

pytestmark = pytest.mark.timeout(600)  # the kit is long on a loaded machine


def test_it_conforms():
    found = outcomes(FlexAttention, CPU, made_up=10)
    assert failed(found) == []
    assert passed(found) >= {
        "keys",
        "window",
        "alibi",
        "sinks",
        "softcap",
        "kv-formats",
        "unowned",
        "nan",
        "neighbours",
    }


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 1])
def test_it_conforms_at_level_full(seed):
    assert failed(outcomes(FlexAttention, CPU, level="full", seed=seed, made_up=1500)) == []


def test_where_it_runs():
    runs = {
        name for name in ("cpu-avx2", "h100", "mi300x") if FlexAttention.capabilities(profile(name)) != Capabilities()
    }
    assert runs == {"cpu-avx2", "h100", "mi300x"}
    assert "float64" not in FlexAttention.capabilities(profile("h100")).dtypes


ROWS = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), min_size=1, max_size=4)


def compare(rows, mask, window, sinks):
    """flex_attention and the reference over one batch; rows are (queries, keys before them)."""
    rows = sorted(rows, key=lambda row: 2 if row[1] == 0 else int(row[0] > 1))
    queries, lengths = [q for q, _ in rows], [q + before for q, before in rows]
    spec = uniform_spec(
        num_heads=4, num_kv_heads=2, head_size=16, masks=frozenset({mask.kind}), window=window, sinks=sinks, lse=True
    )
    layer = LayerParams(name="layer", spec=spec, sinks=torch.linspace(-1, 1, 4) if sinks else None)
    scene = Scene(spec=spec, seq_lens=lengths, layer=layer)
    query = torch.randn(sum(queries), 4, 16, generator=torch.Generator().manual_seed(1))
    results = []
    for cls in (FlexAttention, ReferenceBackend):
        backend = make(cls, spec)
        for row, n in enumerate(lengths):
            scene.write(backend, row, 0, n)
        batch = replace(make_batch(queries, lengths, scene.block_table, spec.block_size), mask=mask)
        results.append(run(backend, layer, query, batch, scene.cache, None, None, lse=True))
    for ours, right in zip(*results, strict=True):
        torch.testing.assert_close(ours, right, atol=2e-5, rtol=1e-5)


@settings(max_examples=25)
@given(ROWS, st.data(), st.sampled_from([None, (2, 0)]), st.booleans())
def test_spans_are_as_the_reference_has_them(rows, data, window, sinks):
    rows = sorted(rows, key=lambda row: 2 if row[1] == 0 else int(row[0] > 1))
    spans = []
    for row, (queries, before) in enumerate(rows):
        cuts = sorted(data.draw(st.sets(st.integers(0, queries + before), max_size=4)))
        spans += [[row, a, b] for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    mask = AttentionMask(kind="spans", data=torch.tensor(spans, dtype=torch.int32).reshape(-1, 3))
    compare(rows, mask, window, sinks)


@settings(max_examples=25)
@given(ROWS, st.integers(0, 2**31), st.sampled_from([None, (2, 0)]), st.booleans())
def test_trees_are_as_the_reference_has_them(rows, seed, window, sinks):
    tokens = sum(queries for queries, _ in rows)
    data = torch.rand(tokens, 7, generator=torch.Generator().manual_seed(seed)) < 0.5
    compare(rows, AttentionMask(kind="tree", data=data), window, sinks)


def test_block_masks_are_made_once_a_step(monkeypatch):
    made, create = [], module.jobs.__globals__["create_block_mask"]
    monkeypatch.setitem(module.jobs.__globals__, "create_block_mask", lambda *a, **k: made.append(a) or create(*a, **k))
    spec = uniform_spec()
    scene, backend = Scene(spec=spec, seq_lens=[9, 5, 7]), make(FlexAttention, spec)
    for row, n in enumerate(scene.seq_lens):
        scene.write(backend, row, 0, n)
    plan = backend.plan(make_batch([1, 1, 3], scene.seq_lens, scene.block_table, spec.block_size))
    assert len(made) == 2, "one for the decodes, one for the other row"
    query = torch.randn(5, 2, 64)
    for _ in range(3):
        backend.forward(scene.layer, query, key=None, value=None, kv_cache=scene.cache, plan=plan, out=query.clone())
    assert len(made) == 2


def test_torch_does_not_warn_of_what_we_know():
    spec = uniform_spec()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scene(spec=spec, seq_lens=[9]).attend(make(FlexAttention, spec), [torch.randn(1, 2, 64)])


def in_a_tensor(value, device):
    held = torch.tensor([value])
    return lambda b: held[b]


@pytest.mark.heavy
def test_it_is_right_when_compiled(monkeypatch):
    """What runs on cards, through torch's compiler for CPUs, which gives no LSE: rows of several lengths."""
    monkeypatch.setattr(module, "uncompiled", torch.compile(module.flex_attention))
    monkeypatch.setitem(module.jobs.__globals__, "number", in_a_tensor)
    spec = uniform_spec(num_heads=4, num_kv_heads=2, softcap=20.0)
    for lengths, queries in (([40, 70], [1, 5]), ([55, 33], [1, 9]), ([99, 64], [1, 20])):
        scene = Scene(spec=spec, seq_lens=lengths)
        given = [torch.randn(n, 4, 64) for n in queries]
        ours, right = (scene.attend(make(cls, spec), given) for cls in (FlexAttention, ReferenceBackend))
        torch.testing.assert_close(ours, right, atol=2e-5, rtol=1e-4)
