"""Slots are 64 bits wide, slot -1 writes nothing, and every layout gives back what was put in."""

from __future__ import annotations

import pytest
import torch

from headstock.core.attention import LAYOUTS, LayerParams, Plane, slots_of
from support.attention import uniform_spec


@pytest.mark.parametrize(
    ("name", "block_size"), [*((name, n) for name in ("nhd", "hnd", "x_packed") for n in (1, 3)), ("shuffle", 4)]
)
def test_rows_come_back_from_where_they_were_put(name: str, block_size: int) -> None:
    layout = LAYOUTS[name]
    spec = uniform_spec(num_heads=4, num_kv_heads=2, head_size=8, head_size_v=6, block_size=block_size)
    cache = layout.allocate(spec, 20, "cpu")
    rng = torch.Generator().manual_seed(0)
    slots = torch.randperm(20 * block_size, generator=rng)[:11]
    key, value = torch.randn(11, 2, 8, generator=rng), torch.randn(11, 2, 6, generator=rng)
    layer = LayerParams(name="layer", spec=spec)
    layout.scatter(cache, layer, key, value, slots)
    again = layout.gather(cache, layer, slots, torch.float32)
    assert torch.equal(again[0], key)
    assert torch.equal(again[1], value)
    assert sum(int((plane != 0).sum()) for plane in cache.planes.values()) == 11 * 2 * (8 + 6)


@pytest.mark.parametrize("layout", list(LAYOUTS.values()), ids=list(LAYOUTS))
def test_slot_minus_one_writes_nothing(layout) -> None:
    spec = uniform_spec(head_size=4)
    cache = layout.allocate(spec, 3, "cpu")
    rows = torch.full((4, 1, 4), float("nan"))
    rows[1] = 7.0
    layout.scatter(cache, LayerParams(name="layer", spec=spec), rows, rows, torch.tensor([-1, 5, -1, -1]))
    for plane in cache.planes.values():
        assert int((plane == 7.0).sum()) == 4
        assert torch.isfinite(plane).all()


@pytest.mark.parametrize(("block", "size", "expected"), [(2066, 1039680, 2147978880), (7768, 276480, 2147696640)])
def test_slots_beyond_31_bits_are_exact(block: int, size: int, expected: int) -> None:
    table = torch.tensor([block], dtype=torch.int32)
    assert int(slots_of(table, 1, size)[0]) == expected


def test_a_page_at_two_to_the_thirty_fourth_does_not_read_page_zero() -> None:
    table = torch.tensor([2**20], dtype=torch.int32)
    assert int(slots_of(table, 3, 16384)[2]) == 2**34 + 2


def test_gathering_reaches_beyond_31_bits_of_elements() -> None:
    # A stride of zero between blocks keeps the offset arithmetic and needs no memory.
    layout = LAYOUTS["hnd"]
    plane = torch.arange(4.0).reshape(1, 1, 1, 4).expand(2**29, 1, 8, 4)
    rows = layout.gather_rows(plane, torch.tensor([2**32 - 1, 8 * 2066]), 8)
    assert rows[:, 0].tolist() == [[0, 1, 2, 3]] * 2


def test_a_plane_counts_its_storage_through_its_strides() -> None:
    assert Plane(shape=(3, 4), dtype=torch.float32).elements == 12
    padded = Plane(shape=(3, 4), dtype=torch.float32, strides=(8, 1))
    assert padded.elements == 2 * 8 + 4
    assert padded.allocate("cpu").stride() == (8, 1)
