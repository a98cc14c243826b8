"""Block tables of one KV group: each group counts in its own blocks, and nothing here knows another's size."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ModelError
from .block_pool import BlockPool
from .hashing import BlockKey
from .spec import KVGroupSpec


class FullRetentionGroup:
    """Tables of a group that keeps every token: the block of position p is ``table[p // block_size]``."""

    def __init__(self, group_id: int, spec: KVGroupSpec, pool: BlockPool) -> None:
        self.group_id = group_id
        self.block_size = spec.block_size
        self.tables: dict[str, list[int]] = {}
        """Request id → block ids; only ever appended to."""
        self._pool = pool
        self._num_cached: dict[str, int] = {}

    def find_hit(self, keys: Sequence[BlockKey], max_tokens: int) -> list[int]:
        """Cached blocks of the longest prefix within `max_tokens`. Any shorter prefix is then cached too."""
        index = self._pool.index
        return [] if index is None else index.match(self.group_id, keys[: max_tokens // self.block_size])

    def blocks_missing(self, request_id: str, num_tokens: int) -> int:
        """Blocks to add before the table covers `num_tokens`."""
        return max(0, -(-num_tokens // self.block_size) - len(self.tables.get(request_id, ())))

    def adopt(self, request_id: str, hit: Sequence[int]) -> None:
        """Start a table with cached blocks, which the caller has touched."""
        self.tables[request_id] = list(hit)
        self._num_cached[request_id] = len(hit)

    def extend(self, request_id: str, count: int) -> tuple[int, ...]:
        """Add `count` fresh blocks to the table; their ids."""
        blocks = self._pool.get_new_blocks(count)
        self.tables[request_id] += blocks
        return tuple(blocks)

    def cache(self, request_id: str, keys: Sequence[BlockKey], num_tokens: int) -> None:
        """Make the blocks that are full at `num_tokens` findable."""
        start, end = self._num_cached[request_id], num_tokens // self.block_size
        if end > start:
            self._pool.cache_full_blocks(self.group_id, self.tables[request_id], keys, start, end)
            self._num_cached[request_id] = end

    def drop(self, request_id: str) -> list[int]:
        """End the table; its blocks, first to last, are the caller's to free."""
        self._num_cached.pop(request_id, None)
        return self.tables.pop(request_id, [])


GROUP_KINDS = {"full": FullRetentionGroup}
"""Retention name → the tables that implement it."""


def make_group(group_id: int, spec: KVGroupSpec, pool: BlockPool) -> FullRetentionGroup:
    """The tables for a group's retention; `ModelError` where there are none."""
    kind = GROUP_KINDS.get(spec.retention.name)
    if kind is None:
        raise ModelError(
            f"KV retention {spec.retention.name!r} (layers {spec.layer_names[0]} …) is not supported; "
            f"supported: {', '.join(GROUP_KINDS)}"
        )
    return kind(group_id, spec, pool)
