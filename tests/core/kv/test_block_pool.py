"""The order in which blocks are reused, and who holds them."""

from __future__ import annotations

import pytest

from headstock.core.errors import CapacityError
from headstock.core.kv import BlockChain, BlockHasher, BlockPool, HashChainIndex, PrefixIdentity
from headstock.core.kv.block_pool import FreeQueue


def chain_keys(tokens, block_size=2):
    chain = BlockChain(BlockHasher(), block_size, PrefixIdentity())
    chain.extend(tokens)
    return chain.keys


def pool_with_cached(num_blocks=6, count=3):
    """A pool whose first `count` blocks hold a cached prefix and have an owner."""
    pool = BlockPool(num_blocks, HashChainIndex())
    table = pool.get_new_blocks(count)
    pool.cache_full_blocks(0, table, chain_keys(range(2 * count)), 0, count)
    return pool, table


def test_new_blocks_come_by_id_and_never_the_null_block():
    assert BlockPool(5).get_new_blocks(4) == [1, 2, 3, 4]


def test_too_many_blocks_are_refused_and_none_is_taken():
    pool = BlockPool(5)
    with pytest.raises(CapacityError, match="5 KV blocks were asked for and 4 are free"):
        pool.get_new_blocks(5)
    assert list(pool.free_queue) == [1, 2, 3, 4]


def test_blocks_that_nobody_can_find_are_reused_first_the_last_one_at_once():
    pool = BlockPool(6, HashChainIndex())
    table = pool.get_new_blocks(3)
    pool.free_blocks(reversed(table))
    assert list(pool.free_queue) == [3, 2, 1, 4, 5]


def test_cached_blocks_are_reused_last_tail_before_head():
    pool, table = pool_with_cached()
    pool.free_blocks(reversed(table))
    assert list(pool.free_queue) == [4, 5, 3, 2, 1]


def test_one_free_splits_into_both():
    pool = BlockPool(6, HashChainIndex())
    table = pool.get_new_blocks(3)
    pool.cache_full_blocks(0, table, chain_keys(range(4)), 0, 2)
    pool.free_blocks(reversed(table))
    assert list(pool.free_queue) == [3, 4, 5, 2, 1]


def test_a_touched_block_leaves_the_queue_and_cannot_be_evicted():
    pool, table = pool_with_cached()
    pool.free_blocks(reversed(table))
    pool.touch([1, 2])
    assert list(pool.free_queue) == [4, 5, 3]
    assert pool.ref_counts[1:4] == [1, 1, 0]
    pool.touch([1])
    pool.free_blocks([1])
    assert 1 not in pool.free_queue
    pool.free_blocks([1])
    assert list(pool.free_queue) == [4, 5, 3, 1]


def test_reuse_is_eviction():
    pool, table = pool_with_cached()
    keys = chain_keys(range(6))
    pool.free_blocks(reversed(table))
    assert pool.get_new_blocks(3) == [4, 5, 3]
    assert pool.index.match(0, keys) == [1, 2]
    assert 3 not in pool.index
    assert len(pool.index) == 2


def test_the_null_block_is_never_freed_touched_or_taken():
    pool = BlockPool(3)
    with pytest.raises(ValueError, match="block 0"):
        pool.free_blocks([0])
    with pytest.raises(ValueError, match="block 0"):
        pool.touch([0])
    assert 0 not in pool.free_queue


def test_freeing_twice_is_an_error():
    pool = BlockPool(3)
    table = pool.get_new_blocks(1)
    pool.free_blocks(table)
    with pytest.raises(ValueError, match="has no owner"):
        pool.free_blocks(table)


def test_a_block_is_cached_once():
    pool, table = pool_with_cached()
    with pytest.raises(ValueError, match="cached already"):
        pool.cache_full_blocks(0, table, chain_keys(range(6)), 2, 3)


def test_usage_leaves_the_null_block_out():
    pool = BlockPool(5)
    assert pool.usage == 0
    pool.get_new_blocks(3)
    assert pool.usage == 0.75
    pool.get_new_blocks(1)
    assert pool.usage == 1


def test_a_reset_waits_until_nobody_holds_a_block():
    pool, table = pool_with_cached()
    assert not pool.reset_prefix_cache()
    assert len(pool.index) == 3
    pool.free_blocks(reversed(table))
    assert pool.reset_prefix_cache()
    assert len(pool.index) == 0
    assert pool.index.match(0, chain_keys(range(6))) == []
    assert pool.num_free_blocks == 5


def test_forgotten_blocks_keep_their_owner_and_end_the_prefix():
    pool, table = pool_with_cached()
    table += pool.get_new_blocks(1)
    pool.forget([table[2]])
    pool.cache_full_blocks(0, table, chain_keys(range(8)), 3, 4)
    assert pool.index.match(0, chain_keys(range(8))) == table[:2]
    assert pool.ref_counts[1:5] == [1, 1, 1, 1]


def test_without_an_index_nothing_is_cached():
    pool = BlockPool(4)
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(0, table, chain_keys(range(4)), 0, 2)
    pool.free_blocks(reversed(table))
    assert list(pool.free_queue) == [2, 1, 3]
    assert pool.reset_prefix_cache()


def test_the_queue_refuses_what_would_break_it():
    queue = FreeQueue(3)
    with pytest.raises(ValueError, match="free already"):
        queue.append(1)
    queue.remove(1)
    with pytest.raises(ValueError, match="is not free"):
        queue.remove(1)
    assert queue.pop() == 2
    with pytest.raises(IndexError):
        queue.pop()
    queue.prepend(1)
    queue.prepend(2)
    assert list(queue) == [2, 1]
