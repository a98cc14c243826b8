"""Colliding hashes are misses, equal contents are kept side by side."""

from __future__ import annotations

import pytest

from headstock.core.kv import BlockChain, BlockHasher, HashChainIndex, PrefixIdentity


def constant(parent, tokens, extra):
    return b"same"


def base31(parent, tokens, extra):
    value = int.from_bytes(parent, "little")
    for token in tokens:
        value = value * 31 + token
    return value.to_bytes(32, "little")


def keys(tokens, function, salt=None, block_size=4):
    chain = BlockChain(BlockHasher(function, root=b""), block_size, PrefixIdentity(cache_salt=salt))
    chain.extend(tokens)
    return chain.keys


def index_of(keys, group=0, first=1):
    index = HashChainIndex()
    for i, key in enumerate(keys):
        index.insert(group, key, first + i, first + i - 1 if i else None)
    return index


def test_two_prompts_that_a_polynomial_hash_confuses_are_told_apart():
    one, other = keys([5, 100, 7, 8], base31), keys([6, 69, 7, 8], base31)
    assert int.from_bytes(one[0].hash, "little") == int.from_bytes(other[0].hash, "little") == 245280
    index = index_of(one)
    assert index.match(0, one) == [1]
    assert index.match(0, other) == []


def test_a_constant_hash_still_finds_exactly_the_right_blocks():
    index = index_of(keys([1, 2, 3, 4, 5, 6, 7, 8], constant))
    assert index.match(0, keys([1, 2, 3, 4, 5, 6, 7, 8], constant)) == [1, 2]
    assert index.match(0, keys([1, 2, 3, 4, 9, 9, 9, 9], constant)) == [1]
    assert index.match(0, keys([9, 9, 9, 9, 5, 6, 7, 8], constant)) == []


def test_equal_tokens_after_another_prefix_are_another_content():
    # Block [5, 6, 7, 8] is cached after [1, 2, 3, 4]; block [0, 0, 0, 0] is cached too, and every hash is the same.
    index = index_of(keys([1, 2, 3, 4, 5, 6, 7, 8], constant))
    index.insert(0, keys([0, 0, 0, 0], constant)[0], 3, None)
    assert index.match(0, keys([0, 0, 0, 0, 5, 6, 7, 8], constant)) == [3]


def test_extra_keys_are_compared_too():
    index = index_of(keys(range(8), constant, salt="ours"))
    assert index.match(0, keys(range(8), constant, salt="ours")) == [1, 2]
    assert index.match(0, keys(range(8), constant, salt="theirs")) == []
    assert index.match(0, keys(range(8), constant)) == []


def test_groups_do_not_see_each_other():
    index = index_of(keys(range(8), constant), group=1)
    assert index.match(0, keys(range(8), constant)) == []
    assert index.match(1, keys(range(8), constant)) == [1, 2]


def test_a_duplicate_takes_over_when_the_first_is_evicted():
    both = keys(range(8), constant)
    index = index_of(both)
    index.insert(0, both[0], 7, None)
    assert index.match(0, both) == [1, 2]
    index.remove(1)
    assert index.match(0, both) == [7, 2]
    index.remove(2)
    index.remove(7)
    assert index.match(0, both) == []
    assert len(index) == 0


def test_a_block_after_an_uncached_one_cannot_be_cached():
    with pytest.raises(ValueError, match="block 4 before it is not"):
        HashChainIndex().insert(0, keys(range(8), constant)[1], 5, 4)
