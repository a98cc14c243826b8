"""Which layers share a table, which share memory."""

from __future__ import annotations

import pytest

from headstock.core.errors import InvalidInput
from headstock.core.kv import (
    FULL_RETENTION,
    KVCacheConfig,
    KVGroupSpec,
    KVLayer,
    group_layers,
    places,
    window_retention,
)


def layers(windows, form="same", nbytes=100):
    """Layers l0, l1, … with these windows."""
    return {
        f"l{i}": KVLayer(
            form=form, bytes_per_block=nbytes, retention=FULL_RETENTION if w is None else window_retention(w)
        )
        for i, w in enumerate(windows)
    }


def sizes(groups):
    return [(group.retention.window, len(group.layer_names)) for group in groups]


TWENTY_TWO = [(512, 4)] * 4 + [(512, 3)] * 2


def test_a_model_without_windows_is_one_group():
    (group,) = group_layers(layers([None] * 4), 16, 4096)
    assert group == KVGroupSpec(block_size=16, bytes_per_block=400, layer_names=("l0", "l1", "l2", "l3"))


def test_a_model_of_windows_only_is_one_group_that_keeps_a_window():
    assert sizes(group_layers(layers([64] * 4), 16, 4096)) == [(64, 4)]


def test_windows_as_long_as_the_longest_request_save_nothing():
    assert sizes(group_layers(layers([None, 4096, 5000]), 16, 4096)) == [(None, 3)]


@pytest.mark.parametrize(
    ("name", "windows", "length", "expected"),
    [
        ("every other layer", [4096, None] * 21, 8192 * 4, [(None, 21), (4096, 21)]),
        ("five to one", ([1024] * 5 + [None]) * 10, 131072, [(None, 10)] + [(1024, 10)] * 5),
        (
            "one full layer less",
            ([512] * 5 + [None]) * 4 + [512] * 2,
            32768,
            [(None, 4)] + [(512, 4)] * 4 + [(512, 3)] * 2,
        ),
        ("two windows", [None, 128, 1024] * 4, 32768, [(None, 4), (128, 4), (1024, 4)]),
        ("hardly any window", [None] * 30 + [1024], 131072, [(None, 31)]),
    ],
)
def test_groups_are_cut_to_the_rarer_kind(name, windows, length, expected):
    groups = group_layers(layers(windows), 16, length)
    assert sorted(sizes(groups), key=str) == sorted(expected, key=str)
    names = [layer for group in groups for layer in group.layer_names]
    assert sorted(names) == sorted(layers(windows))
    assert {group.bytes_per_block for group in groups} == {100 * max(n for _, n in sizes(groups))}


def test_layers_of_a_group_have_places_of_their_own_and_groups_take_turns():
    model = layers([None, 64, None, 64])
    where = places([("l0", "l2"), ("l1", "l3")], model)
    assert where == {"l0": ("same", 0), "l2": ("same", 1), "l1": ("same", 0), "l3": ("same", 1)}


def test_layers_of_another_form_share_no_memory_and_blocks_cost_both():
    model = layers([None, None]) | {
        f"w{i}": KVLayer(form="wide", bytes_per_block=200, retention=window_retention(64)) for i in range(2)
    }
    groups = group_layers(model, 16, 100_000)
    # 2 x 100 for the full layers and 2 x 200 for the others, in a block of either: one group wastes nothing.
    assert sizes(groups) == [(None, 4)]
    assert groups[0].bytes_per_block == 600
    assert len(set(places([group.layer_names for group in groups], model).values())) == 4


def test_blocks_of_one_pool_have_the_same_bytes():
    groups = tuple(
        KVGroupSpec(block_size=4, bytes_per_block=nbytes, layer_names=(str(nbytes),)) for nbytes in (64, 128)
    )
    with pytest.raises(InvalidInput, match=r"same bytes, not \[64, 128\]"):
        KVCacheConfig(num_blocks=8, groups=groups)
