"""Block tables of one KV group: each group counts in its own blocks, and nothing here knows another's size."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ModelError
from .block_pool import BlockPool
from .hashing import BlockKey
from .spec import NULL_BLOCK, KVGroupSpec


class FullRetentionGroup:
    """Tables of a group that keeps every token: the block of position p is ``table[p // block_size]``."""

    def __init__(self, group_id: int, spec: KVGroupSpec, pool: BlockPool, step_tokens: int) -> None:
        """A step computes at most `step_tokens` of a request."""
        self.group_id = group_id
        self.block_size = spec.block_size
        self.tables: dict[str, list[int]] = {}
        """Request id → block ids; only ever appended to."""
        self._most_blocks = spec.most_blocks(step_tokens)
        self._pool = pool
        self._num_cached: dict[str, int] = {}

    def look_up(self, keys: Sequence[BlockKey], max_tokens: int) -> list[int]:
        """Cached blocks of a prefix of at most `max_tokens`: what the other methods about hits call `found`."""
        index = self._pool.index
        blocks = [] if index is None else index.match(self.group_id, keys[: max_tokens // self.block_size])
        return blocks[: blocks.index(NULL_BLOCK)] if NULL_BLOCK in blocks else blocks

    def hit_length(self, found: Sequence[int], max_tokens: int) -> int:
        """Tokens of the longest prefix of at most `max_tokens` that can be continued from `found`."""
        return min(len(found), max_tokens // self.block_size) * self.block_size

    def cut(self, found: Sequence[int], num_tokens: int) -> list[int]:
        """The table after a hit of `num_tokens`, a length that `hit_length` gave."""
        return list(found[: num_tokens // self.block_size])

    def blocks_missing(self, request_id: str, num_tokens: int) -> int:
        """Blocks to add before the table covers `num_tokens`."""
        return max(0, -(-num_tokens // self.block_size) - len(self.tables.get(request_id, ())))

    def blocks_to_admit(self, num_tokens: int, hit: Sequence[int]) -> int:
        """Free blocks that a request takes at most, starting from `hit`, until all `num_tokens` are computed."""
        total, ref_counts = -(-num_tokens // self.block_size), self._pool.ref_counts
        # Hits that someone holds cost nothing; the others leave the free queue like fresh blocks.
        free_hits = sum([block != NULL_BLOCK and ref_counts[block] == 0 for block in hit])
        return min(total - len(hit) + free_hits, self._most_blocks)

    def blocks_to_come(self, request_id: str, num_tokens: int) -> int:
        """Free blocks that a request takes at most beside those it holds, until all `num_tokens` are computed."""
        return self.blocks_missing(request_id, num_tokens)

    def adopt(self, request_id: str, hit: Sequence[int]) -> None:
        """Start a table with cached blocks, and hold them."""
        self._pool.touch([block for block in hit if block != NULL_BLOCK])
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


class WindowGroup(FullRetentionGroup):
    """Tables of a group that keeps a window: blocks that no query will see again are freed while the request runs.

    The null block takes their places, so that positions count as everywhere. They stay findable until they are reused.
    """

    def __init__(self, group_id: int, spec: KVGroupSpec, pool: BlockPool, step_tokens: int) -> None:
        super().__init__(group_id, spec, pool, step_tokens)
        assert spec.reach is not None
        self._reach = spec.reach
        self._num_left: dict[str, int] = {}

    def look_up(self, keys: Sequence[BlockKey], max_tokens: int) -> list[int]:
        """Cached blocks, the null block where there is none: only the last of a prefix are needed."""
        index = self._pool.index
        return [] if index is None else index.match(self.group_id, keys[: max_tokens // self.block_size])

    def hit_length(self, found: Sequence[int], max_tokens: int) -> int:
        """The longest prefix whose last window is cached, scanned from its end."""
        end = last = min(len(found), max_tokens // self.block_size)
        while last > self._first_kept(end * self.block_size):
            last -= 1
            if found[last] == NULL_BLOCK:
                end = last
        return end * self.block_size

    def cut(self, found: Sequence[int], num_tokens: int) -> list[int]:
        first = self._first_kept(num_tokens)
        return [NULL_BLOCK] * first + list(found[first : num_tokens // self.block_size])

    def blocks_to_come(self, request_id: str, num_tokens: int) -> int:
        missing = self.blocks_missing(request_id, num_tokens)
        if not missing:
            return 0
        # Blocks of its own come back as they leave the window; those it shares do not.
        table, ref_counts = self.tables[request_id], self._pool.ref_counts
        own = sum([ref_counts[block] == 1 for block in table[self._num_left[request_id] :]])
        return min(missing, max(0, self._most_blocks - own))

    def adopt(self, request_id: str, hit: Sequence[int]) -> None:
        super().adopt(request_id, hit)
        self._num_left[request_id] = self._first_kept(len(hit) * self.block_size)

    def leave(self, request_id: str, num_computed_tokens: int) -> None:
        """Free the blocks that no query from position `num_computed_tokens` on sees."""
        first, left = self._first_kept(num_computed_tokens), self._num_left[request_id]
        if first > left:
            table = self.tables[request_id]
            self._pool.free_blocks(table[left:first][::-1])
            table[left:first] = [NULL_BLOCK] * (first - left)
            self._num_left[request_id] = first

    def drop(self, request_id: str) -> list[int]:
        self._num_left.pop(request_id, None)
        return super().drop(request_id)

    def _first_kept(self, num_tokens: int) -> int:
        """Index of the first block that is needed once `num_tokens` are computed."""
        return max(0, num_tokens - self._reach) // self.block_size


GROUP_KINDS = {"full": FullRetentionGroup, "window": WindowGroup}
"""Retention name → the tables that implement it."""


def make_group(group_id: int, spec: KVGroupSpec, pool: BlockPool, step_tokens: int) -> FullRetentionGroup:
    """The tables for a group's retention; `ModelError` where there are none."""
    kind = GROUP_KINDS.get(spec.retention.name)
    if kind is None:
        raise ModelError(
            f"KV retention {spec.retention.name!r} (layers {spec.layer_names[0]} …) is not supported; "
            f"supported: {', '.join(GROUP_KINDS)}"
        )
    return kind(group_id, spec, pool, step_tokens)
