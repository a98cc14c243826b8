"""Block keys: a chain of hashes over token ids and everything else that KV depends on.

A key names the content of one full block *and* of all blocks before it, because each hash takes its parent's in
(the idea of vLLM's automatic prefix caching). What a hash cannot tell apart, `PrefixIndex` does.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ExtraKey = tuple[str | int, ...]
"""A tag, then values, e.g. ``("cache_salt", "tenant-7")``; tags keep kinds from meaning each other."""

BlockHash = Callable[[bytes, Sequence[int], Sequence[ExtraKey]], bytes]
"""(parent's hash, token ids, extra keys) → hash."""

SHA256_ROOT = hashlib.sha256(b"headstock block chain 1").digest()
"""Parent of every first block under SHA-256, the same in all processes."""


class BlockKey(NamedTuple):
    """Name and content of one full block."""

    hash: bytes
    token_ids: tuple[int, ...]
    extra_keys: tuple[ExtraKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A fine-tuned adapter (LoRA) that a request runs with."""

    name: str
    revision: str
    """What changes when other weights are loaded under the same name: a revision, digest or path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An image, sound or video whose placeholder tokens stand in the prompt."""

    identifier: str
    """Digest of the content: equal placeholders may stand for different images."""
    offset: int
    """Position of its first placeholder token."""
    length: int
    """Number of its placeholder tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixIdentity:
    """What, beside the token ids, decides whether two requests may share KV."""

    cache_salt: str | None = None
    """Enters the first block only; the chain carries it to all others."""
    adapter: Adapter | None = None
    items: tuple[Item, ...] = ()

    def extra_keys(self, start: int, end: int) -> tuple[ExtraKey, ...]:
        """Tagged keys of the block that holds positions `start` to `end` (exclusive)."""
        keys: list[ExtraKey] = []
        if self.cache_salt is not None and start == 0:
            keys.append(("cache_salt", self.cache_salt))
        if self.adapter is not None:
            keys.append(("lora", self.adapter.name, self.adapter.revision))
        for item in self.items:
            if item.offset < end and item.offset + item.length > start:
                keys.append(("mm", item.identifier, item.offset - start))
        return tuple(keys)


def encode_block(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> bytes:
    """One byte string for one content: lengths before values, little-endian 64-bit tokens, a type before each part."""
    count = len(token_ids)
    parts = [struct.pack(f"<Q{len(parent)}sQ{count}q", len(parent), parent, count, *token_ids)]
    for key in extra_keys:
        parts.append(struct.pack("<Q", len(key)))
        for part in key:
            data = str(part).encode("utf-8", "surrogatepass")
            parts.append(struct.pack("<cQ", b"s" if isinstance(part, str) else b"i", len(data)))
            parts.append(data)
    return b"".join(parts)


def sha256_block(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> bytes:
    """SHA-256 of `encode_block`."""
    return hashlib.sha256(encode_block(parent, token_ids, extra_keys)).digest()


class BlockHasher:
    """A hash function and the root its chains start from.

    Under SHA-256 the root is fixed, so that processes agree without talking. Any other function is taken for a weak
    one: its root is random, so that nobody can prepare colliding prompts; processes that share are given one `root`.
    """

    def __init__(self, function: BlockHash = sha256_block, root: bytes | None = None) -> None:
        if root is None:
            root = SHA256_ROOT if function is sha256_block else secrets.token_bytes(32)
        self.function = function
        self.root = root


class BlockChain:
    """Keys of the full blocks, `block_size` tokens each, of one growing token sequence."""

    __slots__ = ("_hasher", "_identity", "block_size", "keys")

    def __init__(self, hasher: BlockHasher, block_size: int, identity: PrefixIdentity) -> None:
        self._hasher = hasher
        self._identity = identity
        self.block_size = block_size
        self.keys: list[BlockKey] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add the keys of blocks that are full in `token_ids`, the whole sequence so far, and were not before."""
        size = self.block_size
        parent = self.keys[-1].hash if self.keys else self._hasher.root
        for start in range(len(self.keys) * size, len(token_ids) - size + 1, size):
            tokens = tuple(token_ids[start : start + size])
            extra = self._identity.extra_keys(start, start + size)
            parent = self._hasher.function(parent, tokens, extra)
            self.keys.append(BlockKey(parent, tokens, extra))
