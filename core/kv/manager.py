"""Gives requests their blocks: finds cached prefixes, allocates all or nothing, takes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .block_pool import BlockPool
from .group import WindowGroup, make_group
from .hashing import BlockChain, BlockHasher, PrefixIdentity
from .prefix_index import HashChainIndex, PrefixIndex
from .spec import NULL_BLOCK, KVCacheConfig, alignment
from .stats import PrefixCacheStats

BlockIds = tuple[tuple[int, ...], ...]
"""Per KV group, block ids."""


class KVRequest(Protocol):
    """What the manager reads of a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and outputs."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Of those, the ones whose KV is in the request's blocks once all steps scheduled so far have run."""
        ...

    @property
    def chains(self) -> Sequence[BlockChain]:
        """Per KV group, keys of all full blocks of the known tokens; from `KVCacheManager.new_chains`."""
        ...

    @property
    def reads_prefix_cache(self) -> bool:
        """False for a request that needs every prompt token computed, such as for prompt log probabilities."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """A cached prefix, not yet held: its blocks may be evicted until `admit` takes them."""

    num_tokens: int
    blocks: tuple[Sequence[int], ...]
    """Per KV group, its table: block ids, the null block where the group needs none any more."""
    lost_tokens: tuple[int, ...] = ()
    """Per KV group, tokens that others would have found beyond `num_tokens`, at the group that found least."""


class KVCacheManager:
    """Owner of the block pool and of every request's block tables.

    Tables of all groups draw on one pool of ids, as in vLLM's hybrid KV cache. `hasher` and `index` are the prefix
    cache's; both have sound defaults.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        enable_prefix_caching: bool = True,
        hasher: BlockHasher | None = None,
        index: PrefixIndex | None = None,
    ) -> None:
        self.config = config
        self.enable_prefix_caching = enable_prefix_caching
        self.max_tokens = config.max_tokens
        """Tokens whose KV one request can hold when it is alone."""
        self.prefix_stats = PrefixCacheStats()
        if enable_prefix_caching and index is None:
            index = HashChainIndex()
        self.pool = BlockPool(config.num_blocks, index if enable_prefix_caching else None)
        self.groups = tuple(
            make_group(i, spec, self.pool, config.max_step_tokens) for i, spec in enumerate(config.groups)
        )
        self._windowed = tuple(group for group in self.groups if isinstance(group, WindowGroup))
        self._hasher = hasher or BlockHasher()
        self._alignment = alignment(config.groups)
        self._no_hit = PrefixHit(num_tokens=0, blocks=((),) * len(self.groups))
        self._nothing: BlockIds = ((),) * len(self.groups)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests own, 0 to 1."""
        return self.pool.usage

    def new_chains(self, identity: PrefixIdentity) -> tuple[BlockChain, ...]:
        """Key chains for a new request, one a group, shared by groups of equal block size; none without caching."""
        if not self.enable_prefix_caching:
            return ()
        chains = {group.block_size: BlockChain(self._hasher, group.block_size, identity) for group in self.groups}
        return tuple(chains[group.block_size] for group in self.groups)

    def get_computed_blocks(self, request: KVRequest) -> PrefixHit:
        """The longest usable cached prefix. Changes nothing.

        At least one token is left to compute, since its logits are needed; a hit ends where every group ends a block,
        and where every group holds what the next token will see. Only a window's last blocks are needed, so a shorter
        hit may need blocks that a longer one did not: the groups are asked in turn until none shortens it (the fixed
        point of vLLM's hybrid coordinator).
        """
        if not (self.enable_prefix_caching and request.reads_prefix_cache):
            return self._no_hit
        most = request.num_tokens - 1
        found = [group.look_up(chain.keys, most) for group, chain in zip(self.groups, request.chains, strict=True)]
        length, before = most, -1
        while length != before:
            before = length
            for group, blocks in zip(self.groups, found, strict=True):
                length = group.hit_length(blocks, length)
            length -= length % self._alignment
        return PrefixHit(
            num_tokens=length,
            blocks=tuple([group.cut(blocks, length) for group, blocks in zip(self.groups, found, strict=True)]),
            lost_tokens=self._lost_tokens(found, most, length),
        )

    def _lost_tokens(self, found: Sequence[Sequence[int]], most: int, length: int) -> tuple[int, ...]:
        if len(found) == 1:
            return ()
        alone = [group.hit_length(blocks, most) for group, blocks in zip(self.groups, found, strict=True)]
        least = alone.index(min(alone))
        return tuple([max(alone) - length if i == least else 0 for i in range(len(alone))])

    def allocate_slots(self, request: KVRequest, num_new_tokens: int) -> BlockIds | None:
        """Hold blocks for `num_new_tokens` after the computed ones of a running request; per group, the fresh ids.

        None where too few blocks are free, with nothing changed but that blocks outside of windows are free now.
        """
        for group in self._windowed:
            group.leave(request.request_id, request.num_computed_tokens)
        target = request.num_computed_tokens + num_new_tokens
        missing = [group.blocks_missing(request.request_id, target) for group in self.groups]
        need = sum(missing)
        if need == 0:
            return self._nothing
        if need > self.pool.num_free_blocks:
            return None
        return self._extend(request.request_id, missing)

    def admit(self, request: KVRequest, num_new_tokens: int, hit: PrefixHit, *, keep_free: int = 0) -> BlockIds | None:
        """Hold `hit` and blocks for `num_new_tokens` after it for a request that holds nothing; per group, its table.

        There must be room for all known tokens and `keep_free` blocks more, though blocks are taken for the new tokens
        only: looking at the first chunk alone would admit too many. None, with nothing changed, where there is not.
        Raises `ValueError` where the request holds blocks already.
        """
        request_id = request.request_id
        if any(request_id in group.tables for group in self.groups):
            raise ValueError(f"request {request_id} holds blocks already")
        held = tuple(zip(self.groups, hit.blocks, strict=True))
        need = sum([group.blocks_to_admit(request.num_tokens, blocks) for group, blocks in held])
        if need + keep_free > self.pool.num_free_blocks:
            return None
        # All groups' hits are held before any fresh block is taken, which could evict one (vllm-project/vllm#33775).
        for group, blocks in held:
            group.adopt(request_id, blocks)
        target = hit.num_tokens + num_new_tokens
        self._extend(request_id, [group.blocks_missing(request_id, target) for group in self.groups])
        return self.block_ids(request_id)

    def cache_blocks(self, request: KVRequest, num_tokens: int) -> None:
        """Make full blocks of the request's first `num_tokens` findable, once it is sure that this step computes them.

        Tokens not yet known, such as drafts, are left out.
        """
        if not self.enable_prefix_caching:
            return
        final = min(num_tokens, request.num_tokens)
        for group, chain in zip(self.groups, request.chains, strict=True):
            group.cache(request.request_id, chain.keys, final)

    def record_admission(self, request: KVRequest, hit: PrefixHit, *, resumed: bool) -> None:
        """Count an admission with its hit in the statistics."""
        if self.enable_prefix_caching and request.reads_prefix_cache:
            self.prefix_stats = self.prefix_stats.admitted(
                request.num_tokens, hit.num_tokens, hit.lost_tokens, resumed=resumed
            )

    def blocks_to_come(self, request: KVRequest) -> int:
        """Free blocks, over all groups, that a request still takes at most until all its known tokens are computed."""
        return sum([group.blocks_to_come(request.request_id, request.num_tokens) for group in self.groups])

    def block_ids(self, request_id: str) -> BlockIds:
        """Per group, the request's whole table; empty ones where it holds nothing."""
        return tuple([tuple(group.tables.get(request_id, ())) for group in self.groups])

    def free(self, request_id: str, *, forget: bool = False) -> None:
        """Give back all blocks of a request; nothing where it holds none. With `forget`, nobody finds them any more.
        Blocks that left a window before are not among them.

        Later positions come first, across the groups, so that what is evicted first is the tail of the prefix.
        """
        ends = [
            ((i + 1) * group.block_size, block)
            for group in self.groups
            for i, block in enumerate(group.drop(request_id))
            if block != NULL_BLOCK
        ]
        ends.sort(key=lambda end: end[0], reverse=True)
        if forget:
            self.pool.forget(block for _, block in ends)
        self.pool.free_blocks(block for _, block in ends)

    def forget_prefixes(self) -> None:
        """Make nothing findable any more; who holds blocks keeps them."""
        if self.pool.index is not None:
            self.pool.index.clear()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, changing nothing, while any request holds blocks."""
        return self.pool.reset_prefix_cache()

    def _extend(self, request_id: str, counts: Sequence[int]) -> BlockIds:
        return tuple([group.extend(request_id, count) for group, count in zip(self.groups, counts, strict=True)])
