"""A bare request for the KV cache manager, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from headstock.core.kv import BlockChain, KVCacheManager, PrefixHit, PrefixIdentity


class Tokens:
    """What the manager reads of a request, and the steps a scheduler would take with it."""

    def __init__(
        self, kv: KVCacheManager, request_id: str, token_ids: Sequence[int], identity=None, reads=True
    ) -> None:
        self.kv = kv
        self.request_id = request_id
        self.token_ids = list(token_ids)
        self.num_computed_tokens = 0
        self.reads_prefix_cache = reads
        self.chains: Sequence[BlockChain] = kv.new_chains(identity or PrefixIdentity())
        for chain in self.chains:
            chain.extend(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def hit(self) -> PrefixHit:
        return self.kv.get_computed_blocks(self)

    def start(self, count: int | None = None, **options: int) -> PrefixHit | None:
        """Admit with `count` tokens after the hit, all by default; the hit, None where refused."""
        hit = self.hit()
        count = self.num_tokens - hit.num_tokens if count is None else count
        if self.kv.admit(self, count, hit, **options) is None:
            return None
        self._computed(hit.num_tokens + count)
        return hit

    def grow(self, count: int) -> bool:
        """Compute `count` more of the known tokens; False where refused."""
        if self.kv.allocate_slots(self, count) is None:
            return False
        self._computed(count)
        return True

    def append(self, *token_ids: int) -> None:
        self.token_ids += token_ids
        for chain in self.chains:
            chain.extend(self.token_ids)

    def end(self) -> None:
        self.kv.free(self.request_id)
        self.num_computed_tokens = 0

    @property
    def table(self) -> tuple[int, ...]:
        """Blocks of the first group."""
        return self.kv.block_ids(self.request_id)[0]

    def _computed(self, count: int) -> None:
        self.num_computed_tokens += count
        self.kv.cache_blocks(self, self.num_computed_tokens)
