"""Blocks as ids with reference counts, and the order in which free ones are reused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..errors import CapacityError
from .hashing import BlockKey
from .prefix_index import PrefixIndex
from .spec import NULL_BLOCK


class FreeQueue:
    """Free block ids, the next one to reuse first; every operation is O(1).

    A doubly linked ring in two arrays. The null block, which is never free, is where the ring starts and ends.
    """

    def __init__(self, num_blocks: int) -> None:
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self._size = num_blocks - 1

    def pop(self) -> int:
        """Take the first id; `IndexError` where there is none."""
        if not self._size:
            raise IndexError("no free block")
        block = self._next[NULL_BLOCK]
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        """Take `block` out, wherever it is; `ValueError` where it is not free."""
        before, after = self._prev[block], self._next[block]
        if block == NULL_BLOCK or after < 0:
            raise ValueError(f"block {block} is not free")
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = self._prev[block] = -1
        self._size -= 1

    def append(self, block: int) -> None:
        """Add `block` as the last to be reused."""
        self._insert(block, self._prev[NULL_BLOCK], NULL_BLOCK)

    def prepend(self, block: int) -> None:
        """Add `block` as the first to be reused."""
        self._insert(block, NULL_BLOCK, self._next[NULL_BLOCK])

    def _insert(self, block: int, before: int, after: int) -> None:
        if self._next[block] >= 0:
            raise ValueError(f"block {block} is free already")
        self._prev[block], self._next[block] = before, after
        self._next[before] = self._prev[after] = block
        self._size += 1

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return block != NULL_BLOCK and self._next[block] >= 0

    def __iter__(self) -> Iterator[int]:
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            yield block
            block = self._next[block]


class BlockPool:
    """Hands out block ids, counts references, and keeps freed blocks findable until they are reused.

    A free block with cached content is evicted when it is its turn to be reused, least recently used first.
    Without an `index` nothing is cached.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex | None = None) -> None:
        self.num_blocks = num_blocks
        self.index = index
        self.ref_counts = [0] * num_blocks
        """Tables that contain the block; not maintained for the null block."""
        self.free_queue = FreeQueue(num_blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""
        return len(self.free_queue)

    @property
    def usage(self) -> float:
        """Share of the capacity that requests own, 0 to 1."""
        return 1 - len(self.free_queue) / (self.num_blocks - 1)

    def get_new_blocks(self, count: int) -> list[int]:
        """Take `count` blocks, evicting what they hold; `CapacityError`, taking none, where fewer are free."""
        if count > len(self.free_queue):
            raise CapacityError(f"{count} KV blocks were asked for and {len(self.free_queue)} are free")
        blocks = [self.free_queue.pop() for _ in range(count)]
        self.forget(blocks)
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, taking free ones out of the queue: nothing can evict them now."""
        for block in blocks:
            if self.ref_counts[block] == 0:
                self.free_queue.remove(block)
            self.ref_counts[block] += 1

    def free_blocks(self, ordered: Iterable[int]) -> None:
        """Drop a reference to each block; a request's blocks come last one first, so tails are evicted before heads.

        Blocks that nobody can find are reused first, cached ones last. Raises `ValueError` for a block without owner.
        """
        plain: list[int] = []
        for block in ordered:
            if self.ref_counts[block] < 1:
                raise ValueError(f"block {block} has no owner and cannot be freed")
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                if self.index is not None and block in self.index:
                    self.free_queue.append(block)
                else:
                    plain.append(block)
        for block in reversed(plain):
            self.free_queue.prepend(block)

    def cache_full_blocks(
        self, group: int, table: Sequence[int], keys: Sequence[BlockKey], start: int, end: int
    ) -> None:
        """Make blocks `start` to `end` (exclusive) of a request's table findable under their `keys`.

        Where the block before was forgotten, those after it cannot be found and are left out.
        """
        if self.index is None:
            return
        for i in range(start, end):
            parent = table[i - 1] if i else None
            if parent is not None and parent not in self.index:
                return
            self.index.insert(group, keys[i], table[i], parent)

    def forget(self, blocks: Iterable[int]) -> None:
        """Make these blocks' content unfindable; who owns them keeps them."""
        for block in blocks:
            if self.index is not None and block in self.index:
                self.index.remove(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False, changing nothing, while a request owns a block."""
        if len(self.free_queue) != self.num_blocks - 1:
            return False
        if self.index is not None:
            self.index.clear()
        return True
