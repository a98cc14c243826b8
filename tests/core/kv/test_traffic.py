"""Random traffic through pool, prefix cache and manager, against a memory that knows what each slot holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headstock.core.kv import BlockHasher, PrefixIdentity
from support.kv import Tokens
from support.scheduling import cache, check_tables

SHARED = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=4)
prompts = st.builds(lambda shared, own: SHARED[:shared] + own, st.integers(0, 10), tokens)
hashers = {"sha256": BlockHasher(), "constant": BlockHasher(lambda parent, token_ids, extra: b"")}


class Traffic(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 16),
        block_sizes=st.sampled_from([(1,), (2,), (3,), (2, 4), (2, 3), (2, 2)]),
        hasher=st.sampled_from(sorted(hashers)),
        caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks, block_sizes, hasher, caching):
        self.kv = cache(num_blocks, block_sizes, hasher=hashers[hasher], enable_prefix_caching=caching)
        self.memory = {}
        self.live = []
        self.number = 0

    def compute(self, request, start, end):
        for group in self.kv.groups:
            table = group.tables[request.request_id]
            for p in range(start, end):
                slot = (table[p // group.block_size], p % group.block_size)
                self.memory[slot] = (group.group_id, request.salt, *request.token_ids[: p + 1])

    @rule(
        several=st.lists(prompts, min_size=1, max_size=4),
        salt=st.sampled_from([None, None, "a"]),
        chunk=st.integers(1, 14),
        keep_free=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def admit(self, several, salt, chunk, keep_free):
        for prompt in several:
            self.number += 1
            request = Tokens(self.kv, str(self.number), prompt, PrefixIdentity(cache_salt=salt))
            request.salt = salt
            before = list(self.kv.pool.free_queue), list(self.kv.pool.ref_counts)
            hit = request.hit()
            assert hit.num_tokens < len(prompt)
            count = min(chunk, len(prompt) - hit.num_tokens)
            if request.start(count, keep_free=keep_free) is None:
                assert before == (list(self.kv.pool.free_queue), list(self.kv.pool.ref_counts))
                continue
            assert self.kv.pool.num_free_blocks >= keep_free
            self.compute(request, hit.num_tokens, hit.num_tokens + count)
            self.live.append(request)

    @rule(data=st.data(), chunk=st.integers(1, 6))
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
            request.end()
            if self.kv.enable_prefix_caching:
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
            for group in self.kv.groups:
                table = group.tables[request.request_id]
                for p in range(request.num_computed_tokens):
                    held = self.memory[table[p // group.block_size], p % group.block_size]
                    assert held == (group.group_id, request.salt, *request.token_ids[: p + 1])

    @invariant()
    def no_cached_content_is_cut_off_from_its_prefix(self):
        index = self.kv.pool.index if hasattr(self, "kv") else None
        for entry in index._by_block.values() if index is not None else ():
            assert entry.parent is None or entry.parent.blocks


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
