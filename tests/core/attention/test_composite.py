"""Decode rows go to one backend and the others to the other; together they give what either gives alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import AttentionMask, GraphSupport, by_phase
from support.attention import CPU, Scene, make, make_batch, run, uniform_spec


class Silent(ReferenceBackend):
    """Writes zeros."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        out.zero_()


QUERIES, LENGTHS = [1, 1, 3, 4], [9, 40, 20, 4]


def attend(cls) -> torch.Tensor:
    spec = uniform_spec(num_heads=4, num_kv_heads=2)
    rng = torch.Generator().manual_seed(0)
    queries = [torch.randn(n, 4, 64, generator=rng) for n in QUERIES]
    return Scene(spec=spec, seq_lens=LENGTHS).attend(make(cls, spec), queries)


def test_both_parts_together_give_what_one_gives() -> None:
    torch.testing.assert_close(attend(by_phase(SdpaBackend, ReferenceBackend)), attend(ReferenceBackend))


@pytest.mark.parametrize(
    ("cls", "silent_rows"),
    [(by_phase(Silent, SdpaBackend), slice(0, 2)), (by_phase(SdpaBackend, Silent), slice(2, 9))],
    ids=["decode", "prefill"],
)
def test_each_part_computes_its_rows_only(cls, silent_rows: slice) -> None:
    out, whole = attend(cls), attend(SdpaBackend)
    loud = torch.ones(9, dtype=torch.bool)
    loud[silent_rows] = False
    assert (out[~loud] == 0).all()
    assert torch.equal(out[loud], whole[loud])


def test_a_composite_offers_what_both_offer() -> None:
    caps = by_phase(SdpaBackend, ReferenceBackend).capabilities(CPU)
    assert not caps.sinks
    assert caps.exact_seq_lens
    assert caps.layouts == ("nhd", "hnd")


def spans(*rows) -> AttentionMask:
    return AttentionMask(kind="spans", data=torch.tensor(rows, dtype=torch.int32).reshape(-1, 3))


@pytest.mark.parametrize(
    ("mask", "silent_rows"),
    [
        (None, slice(0, 0)),
        (spans((2, 17, 20)), slice(2, 9)),
        (spans((1, 0, 40)), slice(0, 9)),
        (AttentionMask(kind="tree", data=torch.ones(9, 4, dtype=torch.bool).tril()), slice(0, 9)),
    ],
    ids=["no mask", "behind the decodes", "of a decode", "tree"],
)
def test_rows_with_an_extra_mask_go_to_a_third(mask, silent_rows: slice) -> None:
    masks = frozenset({"spans", "tree"})
    spec = uniform_spec(num_heads=4, num_kv_heads=2, masks=masks)
    backend = make(by_phase(SdpaBackend, ReferenceBackend, Silent), spec)
    assert {part.spec.masks for part in backend._parts.values()} == {frozenset(), masks}
    scene = Scene(spec=spec, seq_lens=LENGTHS)
    for row, n in enumerate(LENGTHS):
        scene.write(backend, row, 0, n)
    batch = replace(make_batch(QUERIES, LENGTHS, scene.block_table, spec.block_size), mask=mask)
    out = run(backend, scene.layer, torch.randn(9, 4, 64), batch, scene.cache, None, None)
    silent = torch.zeros(9, dtype=torch.bool)
    silent[silent_rows] = True
    assert ((out == 0).flatten(1).all(1) == silent).all()


def test_masks_are_what_the_third_offers() -> None:
    assert by_phase(SdpaBackend, SdpaBackend, ReferenceBackend).capabilities(CPU).masks == {"spans", "tree"}
    assert by_phase(ReferenceBackend, ReferenceBackend, SdpaBackend).capabilities(CPU).masks == frozenset()


def test_graphs_are_those_of_single_tokens_at_most() -> None:
    class Always(ReferenceBackend):
        @classmethod
        def capabilities(cls, device):
            return replace(super().capabilities(device), graph=GraphSupport.ALWAYS)

    assert by_phase(Always, Always).capabilities(CPU).graph == GraphSupport.SINGLE_TOKEN
