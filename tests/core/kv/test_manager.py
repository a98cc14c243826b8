"""What a request finds in the cache, gets, and gives back."""

from __future__ import annotations

import pytest

from headstock.core.kv import Adapter, BlockHasher, Item, PrefixIdentity
from support.kv import Tokens
from support.scheduling import cache, check_tables


def state(kv):
    """All that a refused call must leave as it was."""
    return (
        list(kv.pool.ref_counts),
        list(kv.pool.free_queue),
        [dict(group.tables) for group in kv.groups],
        kv.prefix_stats,
    )


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (8, 4), (9, 8)])
def test_of_a_cached_prompt_at_least_the_last_token_is_computed(length, cached):
    kv = cache(16)
    for expected in (0, cached):
        request = Tokens(kv, "r", range(length))
        assert request.start().num_tokens == expected
        request.end()


def test_blocks_after_a_recomputed_one_still_hit():
    kv = cache(16)
    first = Tokens(kv, "first", range(8))
    first.start()
    first.append(*range(8, 16))
    assert first.grow(8)
    again = Tokens(kv, "again", range(8))
    assert again.start().num_tokens == 4
    # The recomputed block 1 exists twice now; a longer prompt hits through either.
    assert Tokens(kv, "long", range(17)).hit().num_tokens == 16
    first.end()
    assert Tokens(kv, "long", range(17)).hit().num_tokens == 16
    check_tables(kv)


def pool_of_five_free_with_two_cached():
    kv = cache(8)
    owner = Tokens(kv, "owner", range(100, 108))
    owner.start()
    cached = Tokens(kv, "cached", range(8))
    cached.start()
    cached.end()
    assert kv.pool.num_free_blocks == 5
    return kv


def test_a_request_that_does_not_fit_beside_its_own_hits_changes_nothing():
    kv = pool_of_five_free_with_two_cached()
    before = state(kv)
    assert Tokens(kv, "r", range(24)).start() is None  # 2 hits and 4 more, of 5 free
    assert state(kv) == before


def test_a_request_that_just_fits_beside_its_own_hits_takes_all():
    kv = pool_of_five_free_with_two_cached()
    request = Tokens(kv, "r", range(20))
    assert request.start().num_tokens == 8  # 2 hits and 3 more
    assert kv.pool.num_free_blocks == 0
    check_tables(kv)


def test_hits_that_someone_holds_cost_nothing():
    kv = cache(6)
    Tokens(kv, "one", range(9)).start()
    assert Tokens(kv, "two", range(16)).start().num_tokens == 8  # 2 held, 2 of 2 free
    assert kv.pool.num_free_blocks == 0


def test_hits_are_pinned_before_anything_is_evicted():
    kv = cache(5)
    a = Tokens(kv, "a", range(12))
    a.start()
    blocks = a.table
    a.end()
    b = Tokens(kv, "b", range(13))
    assert b.start().num_tokens == 12
    assert b.table[:3] == blocks
    assert b.table[3] not in blocks
    b.end()
    check_tables(kv)


def test_an_evicted_block_is_found_by_nobody_and_tails_go_first():
    kv = cache(5)
    a = Tokens(kv, "a", range(12))
    a.start()
    head = a.table[0]
    a.end()
    b = Tokens(kv, "b", range(13))
    b.start()
    b.end()
    c = Tokens(kv, "c", range(500, 512))
    c.start()  # takes b's unfinished block, then blocks 2 and 1 of the prefix
    assert Tokens(kv, "a", range(12)).hit().num_tokens == 4
    assert set(c.table) == {1, 2, 3, 4} - {head}
    c.end()
    assert Tokens(kv, "c", range(500, 513)).hit().num_tokens == 12
    assert len(kv.pool.index) == 4


def test_room_for_the_whole_prompt_is_asked_but_only_the_chunk_is_taken():
    kv = cache(8)
    request = Tokens(kv, "r", range(28))
    request.start(5)
    assert len(request.table) == 2
    request.end()
    assert Tokens(kv, "r", range(29)).start(5) is None


def test_blocks_can_be_kept_free_for_others():
    kv = cache(8)
    assert Tokens(kv, "r", range(20)).start(keep_free=3) is None
    assert Tokens(kv, "r", range(20)).start(keep_free=2) is not None


def test_a_table_grows_only_where_a_block_starts():
    kv = cache(8)
    request = Tokens(kv, "r", range(3))
    request.start()
    grown = []
    for token in range(3, 10):
        request.append(token)
        assert request.grow(1)
        grown.append(len(request.table))
    assert grown == [1, 2, 2, 2, 2, 3, 3]


def test_a_running_request_that_cannot_grow_keeps_what_it_has():
    kv = cache(3)
    request = Tokens(kv, "r", range(8))
    request.start()
    request.append(8)
    before = state(kv)
    assert not request.grow(1)
    assert state(kv) == before


def test_admitting_twice_is_an_error():
    kv = cache(8)
    request = Tokens(kv, "r", range(5))
    request.start()
    with pytest.raises(ValueError, match="holds blocks already"):
        request.start()
    check_tables(kv)


def test_freeing_what_holds_nothing_is_nothing():
    kv = cache(8)
    kv.free("nobody")
    assert kv.pool.num_free_blocks == 7


def test_tokens_not_yet_known_are_not_cached():
    kv = cache(8)
    request = Tokens(kv, "r", range(6))
    request.start()
    assert request.grow(2)  # slots for two drafts fill the second block
    assert Tokens(kv, "other", range(9)).hit().num_tokens == 4
    request.append(6, 7)
    kv.cache_blocks(request, 8)
    assert Tokens(kv, "other", range(9)).hit().num_tokens == 8


def test_whoever_needs_every_prompt_position_reads_nothing_but_others_read_its_blocks():
    kv = cache(16)
    Tokens(kv, "first", range(8)).start()
    assert Tokens(kv, "r", range(9), reads=False).start().num_tokens == 0
    assert Tokens(kv, "other", range(9)).hit().num_tokens == 8


def test_without_caching_nothing_is_hashed_or_found():
    kv = cache(16, enable_prefix_caching=False)
    first = Tokens(kv, "first", range(8))
    first.start()
    assert first.chains == ()
    assert Tokens(kv, "again", range(9)).hit().num_tokens == 0
    first.end()
    assert list(kv.pool.free_queue)[:2] == [2, 1]


def test_a_reset_forgets_all_prefixes():
    kv = cache(16)
    request = Tokens(kv, "r", range(8))
    request.start()
    assert not kv.reset_prefix_cache()
    request.end()
    assert kv.reset_prefix_cache()
    assert Tokens(kv, "r", range(9)).hit().num_tokens == 0


IMAGE = Item(identifier="x", offset=1, length=3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PrefixIdentity(), PrefixIdentity(cache_salt="1")),
        (PrefixIdentity(cache_salt="1"), PrefixIdentity(cache_salt="2")),
        (PrefixIdentity(), PrefixIdentity(adapter=Adapter(name="a", revision="1"))),
        (
            PrefixIdentity(adapter=Adapter(name="a", revision="1")),
            PrefixIdentity(adapter=Adapter(name="a", revision="2")),
        ),
        (PrefixIdentity(items=(IMAGE,)), PrefixIdentity(items=(Item(identifier="y", offset=1, length=3),))),
    ],
)
def test_requests_of_different_identity_share_nothing_and_repeats_share_all(one, other):
    kv = cache(32)
    Tokens(kv, "one", range(12), one).start()
    assert Tokens(kv, "two", range(12), other).start().num_tokens == 0
    assert Tokens(kv, "three", range(12), one).hit().num_tokens == 8
    assert Tokens(kv, "four", range(12), other).hit().num_tokens == 8


def test_with_a_hash_that_always_collides_hits_are_the_same():
    strong, weak = cache(64), cache(64, hasher=BlockHasher(lambda parent, tokens, extra: b""))
    prompts = [range(12), range(4, 16), [*range(4), *range(8, 12), *range(4, 8)], [0] * 12, range(13), [0] * 13]
    for i, prompt in enumerate(prompts):
        assert Tokens(weak, str(i), prompt).start().num_tokens == Tokens(strong, str(i), prompt).start().num_tokens


class TestGroups:
    """Groups of different block size over one pool."""

    def test_each_indexes_in_its_own_blocks(self):
        kv = cache(32, (4, 12))
        request = Tokens(kv, "r", range(24))
        request.start()
        attention, state = kv.block_ids("r")
        assert (len(attention), len(state)) == (6, 2)
        assert (24 - 1) // kv.groups[1].block_size == 1
        assert (24 - 1) // kv.groups[0].block_size == 5

    def test_they_never_share_a_block(self):
        kv = cache(32, (4, 12))
        Tokens(kv, "r", range(24)).start()
        attention, state = kv.block_ids("r")
        assert not set(attention) & set(state)
        check_tables(kv)

    @pytest.mark.parametrize(("length", "hit"), [(12, 0), (13, 12), (24, 12), (25, 24), (40, 24)])
    def test_a_hit_ends_where_all_end_a_block(self, length, hit):
        kv = cache(64, (4, 12))
        Tokens(kv, "first", range(27)).start()
        found = Tokens(kv, "again", range(length)).hit()
        assert found.num_tokens == hit
        assert [len(blocks) for blocks in found.blocks] == [hit // 4, hit // 12]

    @pytest.mark.parametrize(("length", "hit"), [(5, 0), (6, 0), (7, 6), (12, 6), (13, 12)])
    def test_a_hit_ends_where_all_end_a_block_though_no_size_divides_another(self, length, hit):
        kv = cache(64, (2, 3))
        Tokens(kv, "first", range(20)).start()
        assert Tokens(kv, "again", range(length)).hit().num_tokens == hit

    def test_the_group_that_found_least_limits_the_hit(self):
        kv = cache(64, (4, 8))
        request = Tokens(kv, "first", range(24))
        request.start()
        index = kv.pool.index
        index.remove(kv.block_ids("first")[1][2])
        assert Tokens(kv, "again", range(25)).hit().num_tokens == 16
        index.remove(kv.block_ids("first")[0][5])
        index.remove(kv.block_ids("first")[0][4])
        index.remove(kv.block_ids("first")[0][3])
        assert Tokens(kv, "again", range(25)).hit().num_tokens == 8

    def test_no_groups_allocation_evicts_another_groups_hit(self):
        kv = cache(5 + 2 + 1, (4, 8))
        first = Tokens(kv, "first", range(16))
        first.start()  # 4 + 2 blocks of 7
        tables = kv.block_ids("first")
        first.end()
        again = Tokens(kv, "again", range(17))
        assert again.start() is None  # hits 4 + 2, needs 1 + 1 more, and 1 is free beside them
        short = Tokens(kv, "short", range(13))
        assert short.start().num_tokens == 8
        assert kv.block_ids("short")[0][:2] == tables[0][:2]
        assert kv.block_ids("short")[1][:1] == tables[1][:1]
        check_tables(kv)

    def test_eviction_takes_later_tokens_of_all_groups_before_earlier_ones(self):
        kv = cache(9, (4, 8))
        first = Tokens(kv, "first", range(16))
        first.start()  # 4 + 2 blocks; 2 never used
        attention, state = kv.block_ids("first")
        first.end()
        assert list(kv.pool.free_queue) == [
            7,
            8,
            attention[3],
            state[1],
            attention[2],
            attention[1],
            state[0],
            attention[0],
        ]

    def test_equal_block_sizes_are_hashed_once(self):
        kv = cache(32, (4, 4, 8))
        one, two, other = Tokens(kv, "r", range(9)).chains
        assert one is two
        assert other is not one
