"""Extra masks: what spans and trees let a query see, in closed form; and what becomes of them in a part of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.core.attention import AttentionMask
from support.attention import make, make_batch, run, uniform_probe, uniform_spec, zeros


def attend(mask, queries, lengths, **fields):
    """Mean positions attended to, a number a token."""
    spec = uniform_spec(masks=frozenset({mask.kind}), **fields)
    scene, backend = uniform_probe(spec, lengths), make(ReferenceBackend, spec)
    for row, n in enumerate(lengths):
        scene.write(backend, row, 0, n)
    batch = replace(make_batch(queries, lengths, scene.block_table, spec.block_size), mask=mask)
    return run(backend, scene.layer, zeros(spec, sum(queries)), batch, scene.cache, None, None)[:, 0, 0].tolist()


def spans(*rows):
    return AttentionMask(kind="spans", data=torch.tensor(rows, dtype=torch.int32).reshape(-1, 3))


def tree(*rows):
    return AttentionMask(kind="tree", data=torch.tensor(rows, dtype=torch.bool))


def test_tokens_of_a_span_see_each_other_and_all_before():
    assert attend(spans((0, 2, 5)), [6], [6]) == pytest.approx([0, 0.5, 2, 2, 2, 2.5])


def test_a_span_in_context_is_seen_by_nobody_ahead_of_it():
    assert attend(spans((0, 0, 3)), [2], [5]) == pytest.approx([1.5, 2])


def test_spans_belong_to_their_row():
    assert attend(spans((1, 0, 2)), [2, 2], [2, 2]) == pytest.approx([0, 0.5, 0.5, 0.5])


def test_a_span_reaches_beyond_the_window():
    """Window of 2 keys: token 3 sees 2 and 3 by itself, and 0 to 3 in a span."""
    assert attend(spans((0, 0, 4)), [5], [5], window=(1, 0)) == pytest.approx([1.5, 1.5, 1.5, 1.5, 3.5])


def test_tokens_of_a_tree_see_context_ancestors_and_themselves():
    """Three keys of context; drafts 3, 4 and 5, of which 4 and 5 are children of 3: siblings do not see each other."""
    mask = tree([0, 0, 0], [1, 0, 0], [1, 0, 0])
    assert attend(mask, [3], [6]) == pytest.approx([6 / 4, 10 / 5, 11 / 5])


def test_a_tree_respects_the_window():
    mask = tree([0, 0, 0], [1, 0, 0], [1, 1, 0])
    assert attend(mask, [3], [6], window=(1, 0)) == pytest.approx([2.5, 3.5, 4.5])


def test_rows_of_a_batch_keep_what_is_said_of_them():
    mask = spans((0, 0, 2), (2, 1, 3), (2, 4, 6))
    assert mask.rows(1, 3, slice(0)).data.tolist() == [[1, 1, 3], [1, 4, 6]]
    assert mask.rows(1, 2, slice(0)) is None
    assert tree([0, 0], [1, 0], [0, 0]).rows(1, 2, slice(1, 3)).data.tolist() == [[True, False], [False, False]]


def test_a_part_of_a_masked_batch_is_masked_alike():
    queries, lengths = [1, 3, 4], [5, 7, 4]
    mask = spans((1, 3, 7), (2, 0, 4))
    spec = uniform_spec(masks=frozenset({"spans"}))
    scene, backend = uniform_probe(spec, lengths), make(ReferenceBackend, spec)
    for row, n in enumerate(lengths):
        scene.write(backend, row, 0, n)
    batch = replace(make_batch(queries, lengths, scene.block_table, spec.block_size), mask=mask)
    whole = run(backend, scene.layer, zeros(spec, 8), batch, scene.cache, None, None)
    part = run(backend, scene.layer, zeros(spec, 7), batch.rows(1, 3), scene.cache, None, None)
    assert torch.equal(part, whole[1:])
