"""Groups with a window: what they keep, what a prefix needs of them, what they cost."""

from __future__ import annotations

import random

import pytest

from headstock.core.errors import CapacityError, InvalidInput
from headstock.core.kv import KVGroupSpec, window_retention
from support.kv import Tokens
from support.scheduling import cache, check_tables, kv_config


def held(request, group=0):
    """Indices of the blocks that a request holds."""
    return [i for i, block in enumerate(request.kv.groups[group].tables[request.request_id]) if block]


def run(kv, name, tokens, chunk, **options):
    """A request that has computed all of `tokens`, in chunks."""
    request = Tokens(kv, name, tokens, **options)
    hit = request.start(min(chunk, len(tokens) - request.hit().num_tokens))
    assert hit is not None
    while request.num_computed_tokens < request.num_tokens:
        assert request.grow(min(chunk, request.num_tokens - request.num_computed_tokens))
    return request


@pytest.mark.parametrize("chunks", [[2, *[1] * 10], [7, *[1] * 5], [4, 3, 1, 1, 1, 1, 1]])
def test_a_token_sees_exactly_its_window_around_the_wrap(chunks):
    kv = cache(32, [(1, 4)], max_step_tokens=7)
    request = Tokens(kv, "r", range(12))
    position = 0
    for chunk in chunks:
        done = request.start(chunk) if position == 0 else request.grow(chunk)
        assert done
        # Blocks of one token: those of the chunk, and the three keys before its first token.
        assert held(request) == list(range(max(0, position - 3), position + chunk))
        position += chunk
    check_tables(kv)


@pytest.mark.parametrize(("block_size", "window", "kept"), [(4, 9, 3), (4, 8, 3), (4, 10, 4), (16, 5, 2), (2, 1, 2)])
def test_an_answer_of_any_length_holds_its_window_and_no_more(block_size, window, kept):
    kv = cache(32, [(block_size, window)], max_step_tokens=block_size)
    request = run(kv, "r", range(5 * block_size), block_size)
    most = 0
    for token in range(400):
        request.append(token)
        assert request.grow(1)
        most = max(most, len(held(request)))
    assert most == kept
    assert most <= kv.config.groups[0].most_blocks(1)


@pytest.mark.parametrize("seed", range(20))
def test_no_request_ever_exceeds_what_the_sizing_says(seed):
    rng = random.Random(seed)
    size, window, step = rng.randint(1, 5), rng.randint(1, 12), rng.randint(1, 9)
    kv = cache(200, [(size, window)], max_step_tokens=step, enable_prefix_caching=False)
    total = rng.randint(1, 60)
    request, most = Tokens(kv, "r", range(total)), 0
    while request.num_computed_tokens < total:
        count = min(rng.randint(1, step), total - request.num_computed_tokens)
        assert request.start(count) if request.num_computed_tokens == 0 else request.grow(count)
        most = max(most, len(held(request)))
    assert most <= kv.config.blocks_for(total)
    assert kv.config.blocks_for(total) <= -(-total // size)


def test_a_hybrid_model_at_32k_tokens_takes_a_fifth_of_the_blocks():
    # Gemma 3's pattern, 5 windows of 1024 to one full layer: six groups, and what one table for all would take.
    groups = [16, *[(16, 1024)] * 5]
    hybrid = cache(20_000, groups, max_step_tokens=512)
    uniform = cache(20_000, [16] * 6, max_step_tokens=512)
    used = []
    for kv in (hybrid, uniform):
        request = run(kv, "r", [i % 97 for i in range(32_768)], 512)
        request.append(5)
        assert request.grow(1)
        used.append(kv.config.capacity - kv.pool.num_free_blocks)
    assert used == [2049 + 5 * 65, 6 * 2049]
    assert used[0] < used[1] / 5
    assert hybrid.config.blocks_for(32_768) == 2048 + 5 * 97  # while the prompt is computed, 512 tokens a step
    assert uniform.config.blocks_for(32_768) == 6 * 2048


def test_only_windows_have_no_longest_request():
    config = kv_config(12, [(4, 9)], max_step_tokens=4)
    assert config.blocks_for(10**6) == 4
    assert config.fit(10**6) == 10**6
    config.require(10**6)
    # A full group ends it all the same: 8 blocks beside the window's 3, and the tokens on the way there.
    mixed = kv_config(12, [4, (4, 9)], max_step_tokens=4)
    assert mixed.max_tokens == 28
    with pytest.raises(CapacityError, match=r"max_model_len=29 needs 12 KV blocks, and the cache has 11"):
        mixed.require(29)


def test_a_window_of_no_key_is_refused():
    with pytest.raises(InvalidInput, match="window"):
        KVGroupSpec(block_size=4, bytes_per_block=1, layer_names=("a",), retention=window_retention(0))


class TestHits:
    def test_only_the_last_window_must_be_cached(self):
        kv = cache(64, [4, (4, 9)], max_step_tokens=4)
        request = run(kv, "first", range(40), 4)
        # Blocks 0 to 6 of the window group are free; reuse their memory.
        lost = [block for block in kv.pool.index._by_block if kv.pool.ref_counts[block] == 0]
        assert len(lost) == 7
        for block in lost:
            kv.pool.index.remove(block)
        hit = Tokens(kv, "again", range(41)).hit()
        assert hit.num_tokens == 40
        assert [list(map(bool, blocks)) for blocks in hit.blocks] == [[True] * 10, [False] * 8 + [True] * 2]
        assert hit.blocks[1][8:] == request.kv.groups[1].tables["first"][8:]
        assert hit.lost_tokens == (0, 0)

    def test_a_shorter_hit_needs_blocks_that_a_longer_one_did_not(self):
        kv = cache(64, [4, (4, 9)], max_step_tokens=4)
        run(kv, "first", range(40), 4).end()
        by_end = {e.key.token_ids[-1]: b for b, e in kv.pool.index._by_block.items() if e.group == 1}
        assert Tokens(kv, "again", [*range(36), 99]).hit().num_tokens == 36
        # Without block 7 neither 36 nor 32 can be continued; 28 needs 5 and 6.
        kv.pool.index.remove(by_end[31])
        assert Tokens(kv, "again", [*range(36), 99]).hit().num_tokens == 28
        # 40 needs 8 and 9 only.
        assert Tokens(kv, "again", [*range(40), 99]).hit().num_tokens == 40

    def test_groups_shorten_each_other_until_none_does(self):
        kv = cache(64, [2, (2, 5), (2, 5)], max_step_tokens=2)
        run(kv, "first", range(20), 2).end()
        ends = [
            {e.key.token_ids[-1] + 1: b for b, e in kv.pool.index._by_block.items() if e.group == g} for g in (1, 2)
        ]
        for group, end in ((0, 20), (1, 16), (0, 12)):
            kv.pool.index.remove(ends[group][end])
        # 20 lacks (1, 20); 18 and 16 need 16 of group 2; 14 and 12 need 12 of group 1; 10 has all.
        hit = Tokens(kv, "again", range(21)).hit()
        assert hit.num_tokens == 10
        assert [len(blocks) for blocks in hit.blocks] == [5, 5, 5]
        assert sum(hit.lost_tokens) == 10

    def test_the_group_that_found_least_is_named_and_hits_are_counted_once(self):
        kv = cache(64, [4, (4, 9)], max_step_tokens=4)
        run(kv, "first", range(40), 4).end()
        for block in [b for b, e in kv.pool.index._by_block.items() if e.group == 1]:
            kv.pool.index.remove(block)
        again = Tokens(kv, "again", range(41))
        hit = again.start(4)
        kv.record_admission(again, hit, resumed=False)
        stats = kv.prefix_stats
        assert (stats.num_query_tokens, stats.num_hit_tokens, stats.num_lost_tokens) == (41, 0, (0, 40))
        assert stats.hit_rate == 0
        again.end()
        other = Tokens(kv, "other", [7] * 9)
        kv.record_admission(other, other.start(), resumed=False)
        assert kv.prefix_stats.num_lost_tokens == (0, 40)

    def test_a_prefix_shorter_than_the_window_is_a_hit_from_its_start(self):
        kv = cache(64, [4, (4, 100)], max_step_tokens=64)
        run(kv, "first", range(9), 9).end()
        assert Tokens(kv, "again", range(9)).hit().num_tokens == 8

    def test_blocks_that_left_the_window_are_still_found_until_they_are_reused(self):
        kv = cache(64, [4, (4, 9)], max_step_tokens=4)
        request = run(kv, "long", range(40), 4)
        assert Tokens(kv, "short", [*range(12), 99]).hit().num_tokens == 12
        short = Tokens(kv, "short", [*range(12), 99])
        short.start()
        assert not set(kv.block_ids("long")[1]) & set(kv.block_ids("short")[1]) - {0}
        check_tables(kv)
        request.end()
        short.end()
        assert kv.usage == 0

    def test_another_content_before_the_window_is_no_hit_though_the_window_is_the_same(self):
        for options in ({}, {"hasher": colliding()}):
            kv = cache(64, [(4, 5)], max_step_tokens=4, **options)
            run(kv, "first", [1] * 4 + [2] * 20, 4).end()
            assert Tokens(kv, "same", [1] * 4 + [2] * 21).hit().num_tokens == 24
            assert Tokens(kv, "other", [3] * 4 + [2] * 21).hit().num_tokens == 0


def colliding():
    from headstock.core.kv import BlockHasher

    return BlockHasher(lambda parent, tokens, extra: b"")


class TestAdmission:
    def test_a_long_prompt_needs_its_window_and_a_step(self):
        kv = cache(1 + 10 + 4, [4, (4, 9)], max_step_tokens=4)
        assert Tokens(kv, "r", range(41)).start(4) is None  # 11 + 4
        request = Tokens(kv, "r", range(40))
        assert request.start(4) is not None
        while request.num_computed_tokens < 40:
            assert request.grow(4)

    def test_what_is_still_to_come_counts_what_will_come_back(self):
        kv = cache(64, [(4, 9)], max_step_tokens=4)
        request = Tokens(kv, "r", range(100))
        request.start(4)
        assert kv.blocks_to_come(request) == 4 - 1  # of 24 missing, no more than 4 at a time, and 1 is there
        for _ in range(5):
            request.grow(4)
        assert kv.blocks_to_come(request) == 4 - 3
        while request.num_computed_tokens < 100:
            request.grow(4)
        assert kv.blocks_to_come(request) == 0

    def test_shared_blocks_do_not_come_back(self):
        kv = cache(64, [(4, 9)], max_step_tokens=4)
        run(kv, "first", range(12), 4)
        request = Tokens(kv, "r", [*range(12), *range(50, 100)])
        assert request.start(4).num_tokens == 12
        # It holds two shared blocks and one of its own; at most 4 can be its own.
        assert kv.blocks_to_come(request) == 3

    def test_refused_requests_change_nothing(self):
        kv = cache(8, [4, (4, 9)], max_step_tokens=4)
        run(kv, "first", range(12), 4).end()
        before = list(kv.pool.free_queue), list(kv.pool.ref_counts)
        assert Tokens(kv, "r", range(40)).start(4) is None
        assert before == (list(kv.pool.free_queue), list(kv.pool.ref_counts))


def test_a_failed_request_leaves_nothing_that_it_held():
    kv = cache(64, [4, (4, 9)], max_step_tokens=4)
    run(kv, "r", range(40), 4)
    kv.free("r", forget=True)
    assert Tokens(kv, "again", range(41)).hit().num_tokens == 0
    assert kv.usage == 0


def test_long_prefixes_are_forgotten_without_recursion():
    kv = cache(8, [(1, 2)], max_step_tokens=1)
    run(kv, "r", [i % 7 for i in range(20_000)], 1).end()
    assert kv.reset_prefix_cache()
    run(kv, "r", [i % 7 for i in range(20_000)], 1).end()
    other = run(kv, "other", [9] * 40, 1)
    other.end()
    assert len(kv.pool.index) <= 7
