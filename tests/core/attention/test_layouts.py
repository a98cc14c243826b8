"""The packed layouts: where a number lies in memory, that rows come back, and sizes that they cannot hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstock.core.attention import KV_FORMATS, LAYOUTS, AttentionSpec, KVCache, LayerParams
from headstock.core.errors import InvalidInput
from headstock.plugins.conformance.fence import Fenced

PACKED = {name: LAYOUTS[name] for name in ("x_packed", "shuffle")}


def spec_of(**fields) -> AttentionSpec:
    plain = {"num_heads": 2, "num_kv_heads": 2, "head_size": 32, "dtype": "float16"}
    return AttentionSpec(**plain | fields)


def memory(cache: KVCache, plane: str) -> torch.Tensor:
    """A plane's numbers in the order in which they lie."""
    tensor = cache.planes[plane]
    return tensor.as_strided((tensor.numel(),), (1,))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("dtype", "x"), [("float16", 8), ("float32", 4), ("float64", 2)])
def test_every_number_lies_where_the_kernels_look_for_it(name, dtype, x):
    heads, channels, v_channels, size = 2, 16, 24, 16
    spec = spec_of(head_size=channels, head_size_v=v_channels, dtype=dtype)
    layout = LAYOUTS[name]
    cache = layout.allocate(spec, 3, "cpu")
    key = torch.arange(1, heads * channels + 1, dtype=getattr(torch, dtype)).view(1, heads, channels)
    value = torch.arange(1, heads * v_channels + 1, dtype=getattr(torch, dtype)).view(1, heads, v_channels)
    block, token = 2, 11
    layout.scatter(cache, LayerParams(name="layer", spec=spec), key, value, torch.tensor([block * size + token]))
    k, v = memory(cache, "k"), memory(cache, "v")
    for head in range(heads):
        for c in range(channels):
            at = (((block * heads + head) * (channels // x) + c // x) * size + token) * x + c % x
            assert k[at] == key[0, head, c]
        for c in range(v_channels):
            base = (block * heads + head) * v_channels * size
            within = c * size + token if name == "x_packed" else (token // x * v_channels + c) * x + token % x
            assert v[base + within] == value[0, head, c]
    assert (int((k != 0).sum()), int((v != 0).sum())) == (heads * channels, heads * v_channels)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PACKED)),
    kv_format=st.sampled_from(sorted(KV_FORMATS)),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 3)),
    blocks=st.integers(1, 5),
    data=st.data(),
)
def test_what_was_scattered_is_gathered(name, kv_format, sizes, blocks, data):
    heads, groups, v_channels, token_groups = sizes
    dtype = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}.get(kv_format, "float16")
    scales = {"fp": "none", "bf": "none"}.get(kv_format[:2] if "8" not in kv_format else "", "tensor")
    scales = "head" if kv_format == "int8_per_head" else scales
    storage = getattr(torch, KV_FORMATS[kv_format].storage)
    x = 16 // storage.itemsize
    size = token_groups * x if name == "shuffle" else token_groups
    spec = spec_of(
        num_heads=heads, num_kv_heads=heads, head_size=groups * x, head_size_v=v_channels, block_size=size,
        dtype=dtype, kv_format=kv_format, kv_scales=scales,
    )  # fmt: skip
    layout = LAYOUTS[name]
    planes = layout.planes(spec, blocks)
    fenced = {key: Fenced.around(p.shape, p.dtype, strides=p.strides, fill=0.0) for key, p in planes.items()}
    cache = KVCache(layout=layout, planes={key: f.tensor for key, f in fenced.items()}, block_size=size)
    slots = torch.tensor(data.draw(st.permutations(range(blocks * size))))
    rng = torch.Generator().manual_seed(0)
    rows = {"k": (len(slots), heads, groups * x), "v": (len(slots), heads, v_channels)}
    bits = {key: torch.randint(0, 2**7, shape, generator=rng, dtype=torch.uint8) for key, shape in rows.items()}
    stored = {key: b.view(storage) if storage.itemsize == 1 else b.to(storage) for key, b in bits.items()}
    for key, plane in cache.planes.items():
        layout.scatter_rows(plane, stored[key], slots)
        assert fenced[key].touched() != "outside"
        again = layout.gather_rows(plane, slots, size)
        assert torch.equal(again.view(torch.uint8), stored[key].view(torch.uint8))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("x_packed", {"head_size": 20}, "head_size: the KV layout holds multiples of 8 in x_packed, not 20"),
        (
            "x_packed",
            {"head_size": 24, "kv_format": "fp8_e4m3", "kv_scales": "tensor"},
            "head_size: the KV layout holds multiples of 16 in x_packed, not 24",
        ),
        ("shuffle", {"block_size": 4}, "block_size: the KV layout holds multiples of 8 in shuffle, not 4"),
        ("shuffle", {"head_size": 4, "block_size": 4}, "head_size: .* in shuffle, not 4"),
    ],
)
def test_sizes_that_do_not_fill_16_bytes_are_refused(name, fields, message):
    with pytest.raises(InvalidInput, match=message):
        LAYOUTS[name].allocate(spec_of(**fields), 2, "cpu")


def test_v_of_any_width_is_held():
    for layout in PACKED.values():
        assert layout.refusals(spec_of(head_size_v=20)) == ()
