"""Decode rows go to one backend and the others to the other; together they give what either gives alone."""

from __future__ import annotations

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import by_phase
from support.attention import CPU, Scene, make, uniform_spec


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
