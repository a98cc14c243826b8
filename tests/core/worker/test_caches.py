"""The layers' caches: what shares memory, what is zeroed when blocks change hands, and which layouts are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.core.attention import LAYOUTS, AttentionSelection, AttentionSpec, Device, KVLayout, Plane
from headstock.core.errors import BackendError
from headstock.core.kv import KVCacheConfig, group_layers
from headstock.core.params import SamplingParams
from headstock.core.scheduler.output import CachedRequestData, NewRequestData, SchedulerOutput
from headstock.core.worker.caches import LayerCaches, kv_layers
from support.attention import CPU
from support.engine import FixedProvider

BLOCKS, BLOCK_SIZE = 9, 4


class Needing(ReferenceBackend):
    @classmethod
    def capabilities(cls, device: Device):
        return replace(super().capabilities(device), needs_zeroed_cache=True)


def spec(**fields) -> AttentionSpec:
    return AttentionSpec(
        **{"num_heads": 2, "num_kv_heads": 2, "head_size": 5, "dtype": "float32", "block_size": BLOCK_SIZE, **fields}
    )


def caches(specs, pick=Needing, layout: KVLayout = LAYOUTS["nhd"]) -> LayerCaches:
    selection: AttentionSelection = replace(FixedProvider(pick).select(specs, CPU, BLOCK_SIZE), layout=layout)
    groups = group_layers(kv_layers(selection, specs), BLOCK_SIZE, 64)
    return LayerCaches(selection, specs, KVCacheConfig(num_blocks=BLOCKS, groups=groups), CPU)


def numbers(plane: torch.Tensor) -> torch.Tensor:
    return plane.view(torch.uint8) if plane.element_size() == 1 else plane


def fill(made: LayerCaches) -> None:
    for cache in made.by_layer.values():
        for plane in cache.planes.values():
            numbers(plane).fill_(7)


def blank(made: LayerCaches, layer: str) -> dict[str, list[int]]:
    """Blocks that are zero all over, by plane."""
    return {
        name: [block for block in range(BLOCKS) if not numbers(plane)[block].any()]
        for name, plane in made.by_layer[layer].planes.items()
    }


def new(blocks: tuple[tuple[int, ...], ...], computed: int = 0) -> NewRequestData:
    return NewRequestData(
        request_id="new",
        token_ids=(1,) * 20,
        num_prompt_tokens=20,
        params=SamplingParams(),
        eos_token_ids=(),
        block_ids=blocks,
        num_computed_tokens=computed,
    )


def known(blocks: tuple[tuple[int, ...], ...]) -> CachedRequestData:
    return CachedRequestData(request_id="known", new_block_ids=blocks, num_computed_tokens=8)


KINDS = {
    "alike": spec(),
    "V unlike K": spec(head_size_v=3),
    "8 bits": spec(kv_format="fp8_e4m3", kv_scales="tensor"),
    "16 bits": spec(dtype="bfloat16"),
    "packs": spec(head_size=16),
}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, id=f"{name}-{layout.name}")
        for name, kind in KINDS.items()
        for layout in LAYOUTS.values()
        if not layout.refusals(kind)
    ],
)
def test_blocks_that_change_hands_are_zeroed_in_all_planes_of_all_layers(kind: AttentionSpec, layout: KVLayout) -> None:
    made = caches({"a": kind, "b": kind}, layout=layout)
    fill(made)
    # Of the new request's table the first two blocks are a cached prefix of eight tokens.
    made.zero_fresh(SchedulerOutput(new_requests=(new(((3, 1, 7, 2),), 8),), cached_requests=(known(((5,),)),)))
    for layer in ("a", "b"):
        assert blank(made, layer) == {"k": [2, 5, 7], "v": [2, 5, 7]}


def test_groups_whose_backends_need_nothing_keep_what_their_blocks_hold() -> None:
    specs = {"a": spec(), "b": spec(window=(4, 0))}
    made = caches(specs, lambda name: Needing if name == "a" else ReferenceBackend)
    assert made.by_layer["a"] is made.by_layer["b"], "two groups take turns in the same memory"
    fill(made)
    made.zero_fresh(SchedulerOutput(new_requests=(new(((1, 2), (3, 4))),), cached_requests=(known(((5,), (6,))),)))
    assert blank(made, "a")["k"] == [1, 2, 5]


class Padded(KVLayout):
    """A block has channels first in memory, and room behind it."""

    name = "padded"

    def planes(self, spec, num_blocks):
        heads, size, channels = spec.num_kv_heads, spec.block_size, spec.head_size
        steps = (2 * heads * size * channels, 1, size, size * heads)
        plane = Plane(shape=(num_blocks, size, heads, channels), dtype=torch.float32, strides=steps)
        return dict.fromkeys("kv", plane)

    def scatter_rows(self, plane, rows, slots):
        raise NotImplementedError

    gather_rows = scatter_rows


class Slots(Padded):
    """Its planes count tokens, not blocks."""

    def planes(self, spec, num_blocks):
        shape = (num_blocks * spec.block_size, spec.num_kv_heads, spec.head_size)
        return dict.fromkeys("kv", Plane(shape=shape, dtype=torch.float32))


class Apart(Padded):
    """Heads lie outermost in memory, so that a block is in several places."""

    def planes(self, spec, num_blocks):
        shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
        steps = (spec.block_size * spec.head_size, spec.head_size, num_blocks * spec.block_size * spec.head_size, 1)
        return dict.fromkeys("kv", Plane(shape=shape, dtype=torch.float32, strides=steps))


def test_strides_in_a_block_are_a_layouts_own_affair() -> None:
    made = caches({"a": spec(), "b": spec()}, layout=Padded())
    fill(made)
    made.zero_fresh(SchedulerOutput(new_requests=(new(((3, 8),)),)))
    for layer in ("a", "b"):
        assert blank(made, layer) == {"k": [3, 8], "v": [3, 8]}


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Slots(), r"the first dimension of plane k is 36, not the 9 blocks; put blocks first"),
        (Apart(), r"a block of plane k is longer than the \d+ elements to the next; let a block be one run of memory"),
    ],
)
def test_a_layout_without_blocks_in_its_planes_is_refused(layout: KVLayout, why: str) -> None:
    with pytest.raises(BackendError, match=r"KV layout padded: " + why):
        caches({"a": spec()}, layout=layout)


def test_planes_of_one_memory_lie_apart_and_are_aligned() -> None:
    planes = [p for cache in caches({"a": spec(), "b": spec()}).by_layer.values() for p in cache.planes.values()]
    starts = sorted(plane.data_ptr() for plane in planes)
    assert len({plane.untyped_storage().data_ptr() for plane in planes}) == 1
    assert all(b - a >= planes[0].nbytes and (b - a) % 256 == 0 for a, b in pairwise(starts))
    for number, plane in enumerate(planes):
        plane.fill_(number)
    assert [plane.unique().tolist() for plane in planes] == [[0], [1], [2], [3]]
