"""Which blocks hold which prefix: the `PrefixIndex` protocol and its hash-chain form.

The index alone knows whether a block is cached, so an evicted block cannot keep a stale hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .hashing import BlockKey
from .spec import NULL_BLOCK


class PrefixIndex(Protocol):
    """Finds blocks by the prefix they end. Holds no references: the pool counts those, and calls `remove` to evict."""

    def match(self, group: int, keys: Sequence[BlockKey]) -> list[int]:
        """A block for each of the first `keys` in KV group `group`, as far as any is cached.

        The null block stands where a later block is cached and this one is not: what a window left behind goes first.
        """
        ...

    def insert(self, group: int, key: BlockKey, block: int, parent: int | None) -> None:
        """Make `block` findable as `key` after cached block `parent`, None for a first block.

        Raises `ValueError` where `block` is in the index already, or `parent` is not.
        """
        ...

    def remove(self, block: int) -> None:
        """Forget a cached block."""
        ...

    def clear(self) -> None: ...

    def __contains__(self, block: int) -> bool: ...

    def __len__(self) -> int:
        """Number of cached blocks."""
        ...


class _Entry:
    """One content after one prefix, and the blocks that hold it: several where it was computed several times."""

    __slots__ = ("blocks", "group", "key", "num_children", "parent")

    def __init__(self, group: int, key: BlockKey, parent: _Entry | None) -> None:
        self.group = group
        self.key = key
        self.parent = parent
        self.num_children = 0
        self.blocks: dict[int, None] = {}


class HashChainIndex:
    """Hash → entries, each checked for its content and its parent entry, so that colliding hashes are misses.

    Duplicates stay: a request's table is append-only, so its block cannot be swapped for an equal one. An entry
    outlives its blocks while another hangs on it, so the parent check by identity is exact though a window's first
    blocks go before its last.
    """

    def __init__(self) -> None:
        self._by_hash: dict[tuple[int, bytes], list[_Entry]] = {}
        self._by_block: dict[int, _Entry] = {}

    def match(self, group: int, keys: Sequence[BlockKey]) -> list[int]:
        blocks: list[int] = []
        parent: _Entry | None = None
        for key in keys:
            parent = self._find(group, key, parent)
            if parent is None:
                break
            blocks.append(next(iter(parent.blocks), NULL_BLOCK))
        return blocks

    def insert(self, group: int, key: BlockKey, block: int, parent: int | None) -> None:
        if block in self._by_block:
            raise ValueError(f"block {block} is cached already")
        above = None if parent is None else self._by_block.get(parent)
        if parent is not None and above is None:
            raise ValueError(f"block {block} cannot be cached: block {parent} before it is not")
        entry = self._find(group, key, above)
        if entry is None:
            entry = _Entry(group, key, above)
            self._by_hash.setdefault((group, key.hash), []).append(entry)
            if above is not None:
                above.num_children += 1
        entry.blocks[block] = None
        self._by_block[block] = entry

    def remove(self, block: int) -> None:
        entry: _Entry | None = self._by_block.pop(block)
        del entry.blocks[block]
        while entry is not None and not entry.blocks and not entry.num_children:
            place = (entry.group, entry.key.hash)
            self._by_hash[place].remove(entry)
            if not self._by_hash[place]:
                del self._by_hash[place]
            entry = entry.parent
            if entry is not None:
                entry.num_children -= 1

    def clear(self) -> None:
        self._by_hash.clear()
        self._by_block.clear()

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def __len__(self) -> int:
        return len(self._by_block)

    def _find(self, group: int, key: BlockKey, parent: _Entry | None) -> _Entry | None:
        for entry in self._by_hash.get((group, key.hash), ()):
            if entry.parent is parent and entry.key == key:
                return entry
        return None
