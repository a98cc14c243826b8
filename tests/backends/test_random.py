"""Random ragged batches: backends agree with the float64 reference, whatever lies in slots nobody owns."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstock.backends.cpu import CpuBackend
from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import AttentionSpec
from support.attention import Scene, make


@st.composite
def specs(draw: st.DrawFn) -> AttentionSpec:
    kv_heads = draw(st.integers(1, 3))
    causal = draw(st.booleans())
    window = draw(st.none() | st.tuples(st.integers(-1, 9), st.just(0) if causal else st.integers(-1, 9)))
    return AttentionSpec(
        num_heads=kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=kv_heads,
        head_size=draw(st.sampled_from([1, 8, 24])),
        head_size_v=draw(st.sampled_from([0, 8, 5])),
        dtype="float32",
        block_size=draw(st.sampled_from([1, 2, 5, 16])),
        causal=causal,
        window=window,
        scale=draw(st.sampled_from([0.0, 0.7])),
    )


rows = st.tuples(st.integers(0, 70), st.integers(0, 12))
"""(keys, queries) of a sequence."""


@settings(max_examples=120)
@given(
    spec=specs(),
    batch=st.lists(rows, min_size=1, max_size=7),
    long=st.booleans(),
    layout=st.sampled_from(["nhd", "hnd"]),
    seed=st.integers(0, 99),
)
def test_all_agree_with_the_reference(
    spec: AttentionSpec, batch: list[tuple[int, int]], long: bool, layout: str, seed: int
) -> None:
    batch = [*batch, (300, 1)] if long else batch
    rng = torch.Generator().manual_seed(seed)
    queries = [torch.randn(q, spec.num_heads, spec.head_size, generator=rng) for _, q in batch]
    lengths = [n for n, _ in batch]
    exact, *outs = [
        Scene(spec=spec, seq_lens=lengths, layout=layout, seed=seed).attend(make(cls, spec), queries)
        for cls in (ReferenceBackend, SdpaBackend, CpuBackend)
    ]
    for out in outs:
        torch.testing.assert_close(out, exact, rtol=0, atol=1e-5)
