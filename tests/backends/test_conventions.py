"""What every built-in backend must give, in closed form: uniform probes, masks, empty rows, sinks, softcap, scales."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headstock.backends.cpu import CpuBackend
from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.backends.triton import TritonBackend
from headstock.core.attention import AttentionBackend, AttentionSpec, LayerParams, mismatches, model_window
from support.attention import CPU, Scene, chunked, make, make_batch, run, uniform_probe, uniform_spec, zeros
from support.interpreted import interpreted

Backend = type[AttentionBackend[Any]]
BACKENDS = [ReferenceBackend, SdpaBackend, CpuBackend, pytest.param(TritonBackend, marks=interpreted)]
WINDOW_OF_FOUR = [0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5]


@pytest.fixture(params=BACKENDS, ids=lambda cls: cls.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


def only_if_offered(backend: Backend, spec: AttentionSpec) -> None:
    """A backend that does not declare a feature is refused it: that is asserted, and the case ends there."""
    missing = mismatches(spec, backend.capabilities(CPU))
    if missing:
        assert backend is not ReferenceBackend
        pytest.skip("; ".join(map(str, missing)))


def assert_close(out: torch.Tensor, expected: Any, tolerance: float = 1e-5) -> None:
    """Every channel of every head of `out` (T, H, D) has the row's expected value; NaN never passes."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)[:, None, None].expand(out.shape)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("chunks", [(9,), (6, 3), (4, 4, 1), (1,) * 9], ids=str)
@pytest.mark.parametrize("block_size", [2, 4, 16])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_a_window_of_four_sees_four_keys_however_the_prompt_is_cut(
    backend: Backend, chunks: tuple[int, ...], block_size: int, layout: str
) -> None:
    spec = uniform_spec(window=model_window(4), block_size=block_size)
    out = chunked(backend, uniform_probe(spec, [9], layout=layout), chunks, zeros(spec, 9))
    assert_close(out, WINDOW_OF_FOUR)


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 9, 10, 100])
@pytest.mark.parametrize("chunks", [(9,), (5, 4), (1,) * 9], ids=str)
def test_a_window_of_w_sees_w_keys(backend: Backend, window: int, chunks: tuple[int, ...]) -> None:
    spec = uniform_spec(window=model_window(window))
    out = chunked(backend, uniform_probe(spec, [9]), chunks, zeros(spec, 9))
    assert_close(out, [(max(0, i - window + 1) + i) / 2 for i in range(9)])


@pytest.mark.parametrize("chunks", [(2,) + (1,) * 10, (7,) + (1,) * 5, (4, 3) + (1,) * 5, (4, 3, 5)], ids=str)
def test_a_window_moves_on_with_every_step(backend: Backend, chunks: tuple[int, ...]) -> None:
    spec = uniform_spec(window=model_window(4))
    out = chunked(backend, uniform_probe(spec, [12]), chunks, zeros(spec, 12))
    assert_close(out, [(max(0, p - 3) + p) / 2 for p in range(12)])


def test_a_window_as_long_as_the_sequence_is_no_window(backend: Backend) -> None:
    queries = torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(3))
    outs = [
        Scene(spec=(spec := uniform_spec(window=model_window(w))), seq_lens=[9]).attend(make(backend, spec), [queries])
        for w in (9, 10, None)
    ]
    torch.testing.assert_close(outs[0], outs[2])
    torch.testing.assert_close(outs[1], outs[2])


def test_a_window_without_causality_sees_both_sides(backend: Backend) -> None:
    spec = uniform_spec(causal=False, window=model_window(3, causal=False), kind="encoder")
    out = uniform_probe(spec, [9]).attend(make(backend, spec), [zeros(spec, 9)])
    seen = [[j for j in range(9) if abs(i - j) < 3] for i in range(9)]
    assert_close(out, [sum(s) / len(s) for s in seen])


def test_causality_is_aligned_bottom_right(backend: Backend) -> None:
    spec = uniform_spec()
    out = uniform_probe(spec, [5]).attend(make(backend, spec), [zeros(spec, 2)])
    assert_close(out, [1.5, 2.0])


def test_rows_without_a_key_are_zero(backend: Backend) -> None:
    spec = uniform_spec()
    out = uniform_probe(spec, [2, 3], first=1).attend(make(backend, spec), [zeros(spec, 5), zeros(spec, 1)])
    assert_close(out, [0, 0, 0, 1, 1.5, 2])


def test_the_lse_of_rows_without_a_key_is_minus_infinity() -> None:
    spec = uniform_spec(lse=True)
    _, lse = uniform_probe(spec, [2], first=1).attend(make(ReferenceBackend, spec), [zeros(spec, 5)], lse=True)
    expected = torch.tensor([-math.inf, -math.inf, -math.inf, 0, math.log(2)])
    torch.testing.assert_close(lse, expected[:, None].expand(5, 2))


def test_rows_of_no_query_and_of_no_key_leave_their_neighbours_alone(backend: Backend) -> None:
    spec = uniform_spec()
    queries = [zeros(spec, 1), zeros(spec, 0), zeros(spec, 2), zeros(spec, 3)]
    out = uniform_probe(spec, [7, 4, 0, 3]).attend(make(backend, spec), queries)
    assert_close(out, [3, 0, 0, 0, 0.5, 1])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("query_len", [1, 4], ids=["decode", "extend"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_what_no_sequence_owns_never_reaches_an_output(
    backend: Backend, poison: float, query_len: int, window: int | None, layout: str
) -> None:
    spec = uniform_spec(window=model_window(window))
    lengths = [13, 1, 4, 5, 300]
    rng = torch.Generator().manual_seed(0)
    queries = [torch.randn(min(query_len, n), 2, 64, generator=rng) for n in lengths]
    dirty, clean = (
        Scene(spec=spec, seq_lens=lengths, poison=p, layout=layout).attend(make(backend, spec), queries)
        for p in (poison, 0.0)
    )
    assert torch.equal(dirty, clean)
    assert torch.isfinite(clean).all()


def test_nan_in_a_key_that_is_seen_stays_visible(backend: Backend) -> None:
    spec = uniform_spec()
    scene = uniform_probe(spec, [6])
    assert scene.values is not None
    scene.values[0] = scene.values[0].clone()
    scene.values[0][2] = float("nan")
    assert scene.attend(make(backend, spec), [zeros(spec, 1)]).isnan().all()


def test_query_heads_read_the_kv_head_of_their_group(backend: Backend) -> None:
    spec = uniform_spec(num_heads=4, num_kv_heads=2)
    values = [torch.tensor([1.0, 2.0])[None, :, None].expand(6, 2, 64).contiguous()]
    for queries in (1, 6):
        scene = Scene(spec=spec, seq_lens=[6], values=values)
        out = scene.attend(make(backend, spec), [zeros(spec, queries)])
        assert out[-1, :, 0].tolist() == pytest.approx([1, 1, 2, 2])


@pytest.mark.parametrize(("sink", "expected"), [(0.0, 0.75), (math.log(2), 0.6)])
@pytest.mark.parametrize("window", [None, 3])
def test_a_sink_enters_the_denominator_once_and_unscaled(
    backend: Backend, sink: float, expected: float, window: int | None
) -> None:
    spec = uniform_spec(sinks=True, window=model_window(window))
    only_if_offered(backend, spec)
    layer = LayerParams(name="layer", spec=spec, sinks=torch.full((2,), sink))
    scene = Scene(spec=spec, seq_lens=[3], values=[torch.ones(3, 1, 64)], layer=layer)
    out, lse = scene.attend(make(backend, spec), [zeros(spec, 1)], lse=True)
    assert_close(out, [expected])
    assert lse[0].tolist() == pytest.approx([math.log(3 + math.exp(sink))] * 2)


def test_a_sink_without_keys_gives_zero_and_its_own_lse() -> None:
    spec = uniform_spec(sinks=True)
    layer = LayerParams(name="layer", spec=spec, sinks=torch.tensor([0.5, -1.0]))
    scene = Scene(spec=spec, seq_lens=[0], layer=layer)
    out, lse = scene.attend(make(ReferenceBackend, spec), [zeros(spec, 1)], lse=True)
    assert_close(out, [0])
    assert lse[0].tolist() == pytest.approx([0.5, -1.0])


@pytest.mark.parametrize(("softcap", "expected"), [(10.0, 0.57695), (None, 0.99995), (0.0, 0.99995)])
def test_softcap_bends_the_scaled_logits(backend: Backend, softcap: float | None, expected: float) -> None:
    spec = uniform_spec(head_size=1, num_heads=1, softcap=softcap, scale=1.0)
    only_if_offered(backend, spec)
    keys, values = torch.tensor([[[3.0]], [[2.0]]]), torch.tensor([[[1.0]], [[0.0]]])
    scene = Scene(spec=spec, seq_lens=[2], keys=[keys], values=[values])
    assert_close(scene.attend(make(backend, spec), [torch.full((1, 1, 1), 10.0)]), [expected])


def test_softcap_comes_before_the_mask(backend: Backend) -> None:
    spec = uniform_spec(head_size=1, num_heads=1, softcap=1.0, scale=1.0)
    only_if_offered(backend, spec)
    keys, values = torch.zeros(2, 1, 1), torch.tensor([[[1.0]], [[0.0]]])
    scene = Scene(spec=spec, seq_lens=[2], keys=[keys], values=[values])
    out = scene.attend(make(backend, spec), [torch.zeros(2, 1, 1)])
    assert out[0].item() == 1.0


def test_alibi_lowers_the_logits_by_slope_times_distance(backend: Backend) -> None:
    spec = uniform_spec(alibi=True)
    only_if_offered(backend, spec)
    slopes = torch.tensor([math.log(2), 0.0])
    scene = uniform_probe(spec, [3], layer=LayerParams(name="layer", spec=spec, alibi_slopes=slopes))
    out = scene.attend(make(backend, spec), [zeros(spec, 1)])
    # Weights 1/4, 1/2, 1 for positions 0, 1, 2 in the first head, equal ones in the second.
    assert out[0, :, 0].tolist() == pytest.approx([(0.5 + 2) / 1.75, 1.0])


def test_lse_is_natural() -> None:
    spec = uniform_spec(lse=True)
    _, lse = uniform_probe(spec, [6]).attend(make(ReferenceBackend, spec), [zeros(spec, 1)], lse=True)
    assert lse[0].tolist() == pytest.approx([math.log(6)] * 2)


@pytest.mark.parametrize("kv_format", ["fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "int8_per_tensor"])
@pytest.mark.parametrize("per_head", [False, True])
def test_scales_of_a_quantised_cache_are_applied_on_the_way_in_and_out(
    backend: Backend, kv_format: str, per_head: bool
) -> None:
    spec = uniform_spec(
        head_size=1,
        num_heads=2,
        num_kv_heads=2,
        scale=1.0,
        kv_format=kv_format,
        kv_scales="head" if per_head else "tensor",
    )
    only_if_offered(backend, spec)
    scales = (
        [torch.tensor([0.25, 0.125]), torch.tensor([0.5, 0.25])]
        if per_head
        else [torch.tensor(0.25), torch.tensor(0.5)]
    )
    layer = LayerParams(name="layer", spec=spec, k_scale=scales[0], v_scale=scales[1])
    rows = torch.tensor([1.0, 0.0])[:, None, None].expand(2, 2, 1).contiguous()
    scene = Scene(spec=spec, seq_lens=[2], keys=[rows], values=[rows], layer=layer, poison=0.0)
    out = scene.attend(make(backend, spec), [torch.ones(1, 2, 1)])
    assert_close(out, [0.73106])


@pytest.mark.parametrize("head_size", [40, 72, 80, 88, 96, 112, 192, 256])
@pytest.mark.parametrize("block_size", [1, 2, 16, 17, 64])
def test_head_and_block_sizes_agree_with_the_reference(head_size: int, block_size: int) -> None:
    spec = AttentionSpec(
        num_heads=6,
        num_kv_heads=2,
        head_size=head_size,
        head_size_v=head_size // 2,
        dtype="float32",
        block_size=block_size,
    )
    assert_agrees(spec, [33, 1, 70], [1, 1, 5], 2e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-6), ("float16", 2e-3), ("bfloat16", 2e-2)]
)
def test_dtypes_agree_with_the_reference(dtype: str, tolerance: float) -> None:
    spec = AttentionSpec(num_heads=9, num_kv_heads=3, head_size=64, dtype=dtype)
    assert_agrees(spec, [400, 3, 70, 64, 31], [1, 1, 7, 64, 1], tolerance)


def assert_agrees(spec: AttentionSpec, lengths: list[int], query_lens: list[int], tolerance: float) -> None:
    rng = torch.Generator().manual_seed(1)
    shape = (spec.num_heads, spec.head_size)
    queries = [torch.randn(n, *shape, generator=rng).to(getattr(torch, spec.dtype)) for n in query_lens]
    sdpa, exact = (
        Scene(spec=spec, seq_lens=lengths).attend(make(cls, spec), queries) for cls in (SdpaBackend, ReferenceBackend)
    )
    torch.testing.assert_close(sdpa, exact, rtol=0, atol=tolerance)


def test_block_order_changes_no_bit(backend: Backend) -> None:
    spec = uniform_spec()
    queries = [torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(2))] * 3
    given = Scene(spec=spec, seq_lens=[29, 29, 29], seed=1)
    moved = Scene(spec=spec, seq_lens=[29, 29, 29], seed=2, keys=given.keys, values=given.values)
    assert not torch.equal(given.block_table, moved.block_table)
    assert torch.equal(given.attend(make(backend, spec), queries), moved.attend(make(backend, spec), queries))


@pytest.mark.parametrize("neighbours", [1, 7, 31])
def test_neighbours_change_nothing(backend: Backend, neighbours: int) -> None:
    spec = uniform_spec()
    rng = torch.Generator().manual_seed(5)
    scene = Scene(spec=spec, seq_lens=[29, *range(3, 3 + neighbours)])
    queries = [torch.randn(1, 2, 64, generator=rng) for _ in scene.seq_lens]
    together = scene.attend(make(backend, spec), queries)[:1]
    assert scene.keys is not None
    assert scene.values is not None
    alone = Scene(spec=spec, seq_lens=[29], keys=scene.keys[:1], values=scene.values[:1])
    out = alone.attend(make(backend, spec), queries[:1])
    if backend is ReferenceBackend:  # declares batch invariance
        assert torch.equal(together, out)
    torch.testing.assert_close(together, out)


@pytest.mark.parametrize("causal", [True, False])
def test_ragged_keys_need_no_cache(backend: Backend, causal: bool) -> None:
    spec = uniform_spec(kv_source="ragged", causal=causal)
    rng = torch.Generator().manual_seed(4)
    lengths = [5, 1, 9]
    batch = make_batch(lengths, lengths, None)
    query = torch.zeros(15, 2, 64)
    key = torch.randn(15, 1, 64, generator=rng)
    value = torch.cat([torch.arange(float(n)) for n in lengths])[:, None, None].expand(15, 1, 64).contiguous()
    layer = LayerParams(name="layer", spec=spec)
    out = run(make(backend, spec), layer, query, batch, None, key, value)
    means = [i / 2 if causal else (n - 1) / 2 for n in lengths for i in range(n)]
    assert_close(out, means)


def test_strided_inputs_are_read_as_they_are(backend: Backend) -> None:
    spec = uniform_spec()
    rng = torch.Generator().manual_seed(6)
    packed = torch.randn(
        9, 4, 64, generator=rng
    )  # queries, key and value side by side, as a fused projection gives them
    query, key, value = packed[:, :2], packed[:, 2:3], packed[:, 3:]
    scenes = [
        Scene(spec=spec, seq_lens=[9], keys=[k], values=[v]) for k, v in ((key, value), (key.clone(), value.clone()))
    ]
    outs = [s.attend(make(backend, spec), [q]) for s, q in zip(scenes, (query, query.clone()), strict=True)]
    torch.testing.assert_close(outs[0], outs[1])
