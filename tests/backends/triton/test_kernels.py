"""The kernels in Triton's interpreter: what the kit's small batches do not reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.backends.triton import TritonBackend
from headstock.backends.triton.tuning import TritonOptions
from headstock.core.attention import LAYOUTS, AttentionSpec, GraphKey, LayerParams, Workspace
from headstock.core.attention.formats import kv_format, quantize
from support.attention import CPU, LIMITS, Scene, make, make_batch, run, uniform_spec
from support.interpreted import interpreted

pytestmark = interpreted
SMALL = replace(LIMITS, max_num_reqs=8, max_num_tokens=512, max_model_len=1024)


def spec(**changes: Any) -> AttentionSpec:
    base = {"num_heads": 4, "num_kv_heads": 2, "head_size": 32, "dtype": "float32", "block_size": 16}
    return AttentionSpec(**{**base, **changes})


def triton(shape: AttentionSpec, **options: int) -> TritonBackend:
    return TritonBackend(shape, CPU, SMALL, Workspace("cpu"), TritonOptions(**options))


def queries(shape: AttentionSpec, counts: list[int]) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    dtype = getattr(torch, shape.dtype)
    return [torch.randn(n, shape.num_heads, shape.head_size, generator=rng).to(dtype) for n in counts]


@pytest.mark.parametrize(
    ("splits", "features"),
    [(7, {}), (2, {"sinks": True, "window": (40, 0)}), (3, {"softcap": 2.0, "alibi": True})],
    ids=str,
)
def test_any_number_of_splits_gives_the_whole(splits: int, features: dict[str, Any]) -> None:
    shape = spec(lse=True, **features)
    rng = torch.Generator().manual_seed(1)
    layer = LayerParams(
        name="layer",
        spec=shape,
        sinks=torch.randn(4, generator=rng) if shape.sinks else None,
        alibi_slopes=torch.rand(4, generator=rng) if shape.alibi else None,
    )
    scene = Scene(spec=shape, seq_lens=[130, 1, 17, 90], layer=layer)
    asked = queries(shape, [1, 1, 1, 3])
    out, lse = scene.attend(triton(shape, splits=splits, decode_keys=16), asked, lse=True)
    right, right_lse = scene.attend(make(ReferenceBackend, shape), asked, lse=True)
    torch.testing.assert_close(out, right, rtol=0, atol=2e-6)
    torch.testing.assert_close(lse, right_lse, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("rows", "keys"), [(16, 128), (64, 16)])
def test_any_size_of_tiles_gives_the_same(rows: int, keys: int) -> None:
    shape = spec(num_heads=6)
    scene = Scene(spec=shape, seq_lens=[75, 40, 33], layout="hnd")
    asked = queries(shape, [1, 20, 33])
    out = scene.attend(triton(shape, prefill_rows=rows, prefill_keys=keys, decode_keys=keys), asked)
    torch.testing.assert_close(out, scene.attend(make(ReferenceBackend, shape), asked), rtol=0, atol=2e-6)


def test_a_group_of_more_heads_than_a_tile_has_rows() -> None:
    shape = spec(num_heads=70, num_kv_heads=1, head_size=16)
    scene = Scene(spec=shape, seq_lens=[20, 5])
    asked = queries(shape, [1, 3])
    right = scene.attend(make(ReferenceBackend, shape), asked)
    torch.testing.assert_close(scene.attend(triton(shape), asked), right, rtol=0, atol=2e-6)


def test_bfloat16_is_rounded_to_nearest_as_torch_does() -> None:
    """One key: the output is its value, whose float32 goes through the kernel's rounding."""
    values = torch.tensor([1.0, 1.00390625, 1.01171875, 3.3e38, -1e-40, 0.1, 255.5, 1.9999, -2.00782])
    shape = uniform_spec(num_heads=1, head_size=16, dtype="bfloat16", kv_format="fp32", kv_source="ragged")
    key = torch.zeros(1, 1, 16)
    value = torch.nn.functional.pad(values, (0, 16 - len(values)))[None, None]
    query = torch.zeros(1, 1, 16, dtype=torch.bfloat16)
    layer = LayerParams(name="layer", spec=shape)
    out = run(triton(shape), layer, query, make_batch([1], [1], None), None, key, value)
    assert torch.equal(out[0, 0, : len(values)], values.bfloat16())


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "int8_per_tensor", "bf16"])
def test_writing_rounds_and_saturates_as_torch_does(name: str) -> None:
    """Every code of the format, what lies between neighbours and on either side of that, and what is beyond."""
    shape = spec(num_heads=1, num_kv_heads=1, head_size=1, kv_format=name, kv_scales="none", block_size=1024)
    storage = getattr(torch, kv_format(name).storage)
    codes = torch.arange(256).to(torch.uint8)
    exact = (codes.view(storage) if storage.itemsize == 1 else codes.float().add(1e-3)).float()
    exact = exact[exact.isfinite()].sort().values
    middle = (exact[1:] + exact[:-1]) / 2
    values = torch.cat([exact, middle, middle.nextafter(exact[1:]), middle.nextafter(exact[:-1]), exact * 1e4])
    values = values[values.isfinite()][:, None, None]
    cache = LAYOUTS["nhd"].allocate(shape, 2, "cpu")
    layer = LayerParams(name="layer", spec=shape)
    backend = TritonBackend(shape, CPU, replace(SMALL, max_num_tokens=4096), Workspace("cpu"))
    backend.write_kv(layer, values, values, cache, torch.arange(len(values)))
    wanted = quantize(values, None, storage)
    for plane in (cache.k, cache.v):
        assert torch.equal(plane.flatten(0, 1)[: len(values)].float(), wanted.float())


def test_neighbours_change_no_bit_where_that_is_asked_for() -> None:
    shape = spec(batch_invariant=True)
    scene = Scene(spec=shape, seq_lens=[90, 30, 7])
    asked = queries(shape, [1, 30, 4])
    assert scene.keys is not None
    assert scene.values is not None
    together = scene.attend(triton(shape), asked)
    alone = Scene(spec=shape, seq_lens=[90], keys=scene.keys[:1], values=scene.values[:1]).attend(
        triton(shape), asked[:1]
    )
    assert torch.equal(together[:1], alone)


def test_tokens_behind_the_last_row_of_a_graph_come_out_as_zeros() -> None:
    """A captured step has room for more tokens than rows hold; `out` is as the allocator gave it."""
    shape = spec()
    scene = Scene(spec=shape, seq_lens=[40, 9])
    (query,) = queries(shape, [5])
    batch = make_batch([1, 2], scene.seq_lens, scene.block_table)
    for rows, tokens in ((2, 5), (2, 3)):
        backend = triton(shape)
        for row, length in enumerate(scene.seq_lens):
            scene.write(backend, row, 0, length)
        plan = backend.plan(replace(batch, graph=GraphKey(padded_reqs=rows, padded_tokens=tokens, capturing=True)))
        out = torch.full((5, 4, 32), float("nan"))
        backend.prepare(plan)
        assert scene.layer is not None
        backend.forward(scene.layer, query, key=None, value=None, kv_cache=scene.cache, plan=plan, out=out)
        assert not out[3:tokens].any()
        assert out[:tokens].isfinite().all()
