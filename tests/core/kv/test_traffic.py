"""Random traffic through pool, prefix cache and manager, against a memory that knows what each slot holds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headstock.core.kv import BlockHasher, PrefixIdentity
from headstock.core.kv.group import WindowGroup
from support.kv import Tokens
from support.scheduling import cache, check_tables

SHARED = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]
SHAPES = [(1,), (2,), (3,), (2, 4), (2, 3), (2, 2)]
SHAPES += [
    ((2, 3),),
    ((2, 1),),
    ((1, 4), 1),
    (2, (2, 3)),
    (2, (2, 4), (2, 7)),
    (4, (2, 2)),
    ((3, 5), 2),
    ((4, 3), (2, 6)),
]
"""Block sizes of the groups, or those and windows."""
STEP = 5
"""Most tokens of a request in a step."""
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=4)
prompts = st.builds(lambda shared, own: SHARED[:shared] + own, st.integers(0, 10), tokens)
hashers = {"sha256": BlockHasher(), "constant": BlockHasher(lambda parent, token_ids, extra: b"")}


class Traffic(RuleBasedStateMachine):
    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes

    @initialize(
        num_blocks=st.integers(3, 16),
        hasher=st.sampled_from(sorted(hashers)),
        caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks, hasher, caching):
        options = {"enable_prefix_caching": caching, "max_step_tokens": STEP}
        self.kv = cache(num_blocks, self.shapes, hasher=hashers[hasher], **options)
        self.memory = {}
        self.live = []
        self.past = []
        self.number = 0

    def compute(self, request, start, end):
        for group in self.kv.groups:
            table = group.tables[request.request_id]
            for p in range(start, end):
                slot = (table[p // group.block_size], p % group.block_size)
                self.memory[slot] = (group.group_id, request.salt, *request.token_ids[: p + 1])
        self.read(request, start, end)

    def read(self, request, start, end):
        """What the queries at `start` to `end` see is there."""
        for group, spec in zip(self.kv.groups, self.kv.config.groups, strict=True):
            table, window = group.tables[request.request_id], spec.retention.window
            for p in range(0 if window is None else max(0, start - window + 1), end):
                held = self.memory[table[p // group.block_size], p % group.block_size]
                assert held == (group.group_id, request.salt, *request.token_ids[: p + 1])

    @rule(
        several=st.lists(prompts, min_size=1, max_size=4),
        salt=st.sampled_from([None, None, "a"]),
        chunk=st.integers(1, STEP),
        keep_free=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def admit(self, several, salt, chunk, keep_free):
        self.admit_all(several, salt, chunk, keep_free)

    @rule(data=st.data(), length=st.integers(1, 30), chunk=st.integers(1, STEP))
    def come_back(self, data, length, chunk):
        """A prompt that begins as a text of before."""
        if self.past:
            tokens, salt = data.draw(st.sampled_from(self.past), label="text")
            self.admit_all([[*tokens[:length], 1]], salt, chunk, 0)

    @rule(count=st.integers(1, 6))
    def evict(self, count):
        """What others need goes from the free blocks, and comes back."""
        pool = self.kv.pool
        pool.free_blocks(pool.get_new_blocks(min(count, pool.num_free_blocks)))

    def admit_all(self, several, salt, chunk, keep_free):
        for prompt in several:
            self.number += 1
            request = Tokens(self.kv, str(self.number), prompt, PrefixIdentity(cache_salt=salt))
            request.salt = salt
            before = list(self.kv.pool.free_queue), list(self.kv.pool.ref_counts)
            hit = request.hit()
            assert hit.num_tokens == self.longest_hit(request)
            count = min(chunk, len(prompt) - hit.num_tokens)
            if request.start(count, keep_free=keep_free) is None:
                assert before == (list(self.kv.pool.free_queue), list(self.kv.pool.ref_counts))
                continue
            assert self.kv.pool.num_free_blocks >= keep_free
            self.compute(request, hit.num_tokens, hit.num_tokens + count)
            self.live.append(request)

    @rule(data=st.data(), chunk=st.integers(1, STEP))
    def grow(self, data, chunk):
        if not self.live:
            return
        request = data.draw(st.sampled_from(self.live), label="request")
        start = request.num_computed_tokens
        count = min(chunk, request.num_tokens - start)
        if count and request.grow(count):
            self.compute(request, start, start + count)

    @rule(data=st.data(), more=tokens)
    def append(self, data, more):
        if self.live:
            data.draw(st.sampled_from(self.live), label="request").append(*more)

    @rule(data=st.data(), count=st.integers(1, 3))
    def end(self, data, count):
        for _ in range(min(count, len(self.live))):
            request = data.draw(st.sampled_from(self.live), label="request")
            self.live.remove(request)
            computed = request.num_computed_tokens
            self.past.append((list(request.token_ids), request.salt))
            request.end()
            if self.kv.enable_prefix_caching and not self.kv._windowed:
                usable = min(computed, request.num_tokens - 1)
                assert request.hit().num_tokens >= usable - usable % self.kv._alignment

    @rule()
    def reset(self):
        assert self.kv.reset_prefix_cache() == (not self.live)

    @invariant()
    def tables_add_up(self):
        if hasattr(self, "kv"):
            check_tables(self.kv)

    @invariant()
    def every_block_read_holds_the_right_prefix(self):
        for request in getattr(self, "live", ()):
            self.read(request, request.num_computed_tokens, request.num_computed_tokens)

    @invariant()
    def all_that_is_cached_can_be_found_and_nothing_else_is_remembered(self):
        index = self.kv.pool.index if hasattr(self, "kv") else None
        if index is None:
            return
        entries = [entry for same in index._by_hash.values() for entry in same]
        assert {block for entry in entries for block in entry.blocks} == set(index._by_block)
        for entry in entries:
            assert entry.num_children == sum(other.parent is entry for other in entries)
            assert entry.blocks or entry.num_children
            assert entry.parent is None or entry.parent in entries
            if not isinstance(self.kv.groups[entry.group], WindowGroup):
                assert entry.blocks, "what comes after it is cut off from its prefix"

    def longest_hit(self, request):
        """The most tokens, ending where all groups end a block, whose last keys are cached in every group."""
        index, best = self.kv.pool.index, 0
        if index is None:
            return 0
        content = {
            (group, self.memory[block, self.kv.groups[group].block_size - 1])
            for block in index._by_block
            for group in [index._by_block[block].group]
        }
        for length in range(0, request.num_tokens, self.kv._alignment):
            needed = []
            for group, spec in zip(self.kv.groups, self.kv.config.groups, strict=True):
                size, window = group.block_size, spec.retention.window
                first = 0 if window is None else max(0, min(length - window + 1, length - size)) // size
                needed += [(group.group_id, (i + 1) * size) for i in range(first, length // size)]
            if all((g, (g, request.salt, *request.token_ids[:end])) in content for g, end in needed):
                best = length
        return best


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_traffic(shapes):
    run_state_machine_as_test(lambda: Traffic(shapes), settings=settings(max_examples=25, stateful_step_count=40))
