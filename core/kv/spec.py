"""What a KV cache holds and costs, in blocks, tokens and bytes. The tensors' own view is in `core/attention`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CapacityError, InvalidInput

NULL_BLOCK = 0
"""Block id that padding points to: never handed out, never freed, never cached. The pool's capacity is one less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which tokens of a request keep their KV while it runs; a name, and for later kinds their numbers."""

    name: str


FULL_RETENTION = Retention(name="full")
"""Every token's KV stays until the request ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroupSpec:
    """Layers that share one block table. Raises `InvalidInput` naming the field."""

    block_size: int
    """Tokens a block of this group holds."""
    bytes_per_block: int
    """Bytes of one block, summed over the group's layers, K and V and scales included."""
    layer_names: tuple[str, ...]
    retention: Retention = FULL_RETENTION

    def __post_init__(self) -> None:
        for name in ("block_size", "bytes_per_block"):
            value: int = getattr(self, name)
            if value < 1:
                raise InvalidInput(name, f"must be at least 1, not {value}")
        if not self.layer_names:
            raise InvalidInput("layer_names", "a KV group needs at least one layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """One pool of block ids over all groups of a model.

    Raises `InvalidInput` without groups and `CapacityError` where no block is left beside the null block.
    """

    num_blocks: int
    """Blocks in memory, the null block included."""
    groups: tuple[KVGroupSpec, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidInput("groups", "a KV cache needs at least one group")
        if self.num_blocks < 2:
            raise CapacityError(f"a KV cache of {self.num_blocks} blocks holds nothing: block 0 is the null block")

    @property
    def capacity(self) -> int:
        """Blocks that requests can own."""
        return self.num_blocks - 1

    @property
    def max_tokens(self) -> int:
        """Tokens whose KV fits when one request has the whole pool."""
        most = self.capacity * min(group.block_size for group in self.groups)
        return bisect_right(range(most + 1), self.capacity, key=self.blocks_for) - 1

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a request of `num_tokens` owns, over all groups."""
        return sum(-(-num_tokens // group.block_size) for group in self.groups)

    def require(self, max_model_len: int) -> None:
        """Raise `CapacityError` where one request of `max_model_len` tokens does not fit, even alone."""
        need = self.blocks_for(max_model_len)
        if need > self.capacity:
            raise CapacityError(
                f"max_model_len={max_model_len} needs {need} KV blocks, and the cache has {self.capacity} "
                f"({self.max_tokens} tokens). Give the cache more memory, or set max_model_len to "
                f"{self.max_tokens} or less."
            )

    def fit(self, max_model_len: int) -> int:
        """The longest length up to `max_model_len` of which one request fits; `CapacityError` where none does."""
        fitted = min(max_model_len, self.max_tokens)
        if fitted < 1:
            self.require(1)
        return fitted


def num_blocks_for(budget_bytes: int, groups: Sequence[KVGroupSpec]) -> int:
    """Blocks, the null block included, that a memory budget holds.

    A block id has a row in the planes of every layer of every group, so it costs the sum over the groups.
    Raises `CapacityError` where fewer than two fit.
    """
    block_bytes = sum(group.bytes_per_block for group in groups)
    num_blocks = budget_bytes // block_bytes
    if num_blocks < 2:
        raise CapacityError(
            f"a KV cache budget of {budget_bytes} bytes holds {max(num_blocks, 0)} blocks of {block_bytes} bytes; "
            f"at least 2 are needed, one of them as the null block. Give it {2 * block_bytes} bytes or more."
        )
    return num_blocks


def alignment(groups: Sequence[KVGroupSpec]) -> int:
    """Tokens at whose multiples a block ends in every group: where a shared prefix can end."""
    return math.lcm(*(group.block_size for group in groups))
