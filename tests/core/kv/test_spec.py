"""Counting blocks, tokens and bytes."""

from __future__ import annotations

import pytest

from headstock.core.errors import CapacityError, InvalidInput, ModelError
from headstock.core.kv import FULL_RETENTION, KVCacheConfig, KVCacheManager, KVGroupSpec, Retention, num_blocks_for
from support.scheduling import group


def config(num_blocks, *block_sizes):
    return KVCacheConfig(num_blocks=num_blocks, groups=tuple(group(size) for size in block_sizes))


def test_the_null_block_is_no_capacity():
    assert config(8, 4).capacity == 7
    assert config(8, 4).max_tokens == 28


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (28, 7), (29, 8)])
def test_a_started_block_counts(tokens, blocks):
    assert config(8, 4).blocks_for(tokens) == blocks


def test_groups_count_in_their_own_blocks():
    # 24 tokens: 6 blocks of 4 and 2 of 12.
    both = config(9, 4, 12)
    assert both.blocks_for(24) == 8
    assert both.max_tokens == 24
    assert config(8, 4, 12).max_tokens == 20


def test_a_pool_smaller_than_the_number_of_groups_holds_no_token():
    assert config(2, 4, 12).max_tokens == 0


def test_the_longest_request_must_fit_beside_the_null_block():
    config(8, 4).require(28)
    with pytest.raises(CapacityError, match=r"max_model_len=29 needs 8 KV blocks, and the cache has 7 \(28 tokens\)"):
        config(8, 4).require(29)


def test_a_length_can_be_fitted():
    assert config(8, 4).fit(64) == 28
    assert config(8, 4).fit(20) == 20
    with pytest.raises(CapacityError):
        config(2, 4, 12).fit(64)


def test_a_budget_in_bytes_gives_whole_blocks():
    layers = KVGroupSpec(block_size=16, bytes_per_block=1000, layer_names=("a", "b"))
    assert num_blocks_for(10_999, [layers]) == 10
    assert num_blocks_for(10_999, [layers, layers]) == 10


@pytest.mark.parametrize("budget", [-5, 0, 1999])
def test_a_budget_without_a_usable_block_is_refused_with_the_least_one(budget):
    with pytest.raises(CapacityError, match="2000 bytes or more"):
        num_blocks_for(budget, [KVGroupSpec(block_size=16, bytes_per_block=1000, layer_names=("a",))])


def test_nonsense_is_refused_by_field():
    with pytest.raises(InvalidInput, match="block_size"):
        KVGroupSpec(block_size=0, bytes_per_block=1, layer_names=("a",))
    with pytest.raises(InvalidInput, match="bytes_per_block"):
        KVGroupSpec(block_size=1, bytes_per_block=0, layer_names=("a",))
    with pytest.raises(InvalidInput, match="layer_names"):
        KVGroupSpec(block_size=1, bytes_per_block=1, layer_names=())
    with pytest.raises(InvalidInput, match="groups"):
        KVCacheConfig(num_blocks=8, groups=())
    with pytest.raises(CapacityError, match="null block"):
        config(1, 4)


def test_a_retention_without_tables_is_refused_by_name():
    spec = KVGroupSpec(block_size=4, bytes_per_block=1, layer_names=("a",), retention=Retention(name="moon"))
    assert group().retention == FULL_RETENTION
    with pytest.raises(ModelError, match=r"KV retention 'moon'.*supported: full"):
        KVCacheManager(KVCacheConfig(num_blocks=8, groups=(spec,)))
