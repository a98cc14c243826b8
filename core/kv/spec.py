"""What a KV cache holds and costs, in blocks, tokens and bytes. The tensors' own view is in `core/attention`."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CapacityError, InvalidInput

NULL_BLOCK = 0
"""Block id that padding points to: never handed out, never freed, never cached. The pool's capacity is one less."""


MOST_TOKENS = 2**31 - 1
"""Longest request that is counted: positions are 32-bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which tokens of a request keep their KV while it runs: a name, and what numbers that kind has."""

    name: str
    window: int | None = None
    """Keys that a query sees, the current one included; None is all."""


FULL_RETENTION = Retention(name="full")
"""Every token's KV stays until the request ends."""


def window_retention(window: int) -> Retention:
    """The last `window` tokens stay, the current one included."""
    return Retention(name="window", window=window)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroupSpec:
    """Layers that share one block table. Raises `InvalidInput` naming the field."""

    block_size: int
    """Tokens a block of this group holds."""
    bytes_per_block: int
    """Bytes of one block over all layers of the group, K and V and scales included; equal for all groups of a pool."""
    layer_names: tuple[str, ...]
    retention: Retention = FULL_RETENTION

    def __post_init__(self) -> None:
        for name in ("block_size", "bytes_per_block"):
            value: int = getattr(self, name)
            if value < 1:
                raise InvalidInput(name, f"must be at least 1, not {value}")
        if not self.layer_names:
            raise InvalidInput("layer_names", "a KV group needs at least one layer")
        if self.retention.window is not None and self.retention.window < 1:
            raise InvalidInput("window", f"must be at least 1 key, not {self.retention.window}")

    def __str__(self) -> str:
        """For the log."""
        count, window = len(self.layer_names), self.retention.window
        who = "1 layer keeps" if count == 1 else f"{count} layers keep"
        return f"{who} every token" if window is None else f"{who} the last {window} tokens"

    @property
    def reach(self) -> int | None:
        """Tokens before the next one whose blocks stay; None is all.

        Those are the keys of its window, and a block's worth in any case: a cached block hangs on the one before it.
        """
        window = self.retention.window
        return None if window is None else max(window - 1, self.block_size)

    def most_blocks(self, step_tokens: int) -> int:
        """Blocks that a request never exceeds, however long, if a step computes at most `step_tokens` of it."""
        if self.reach is None:
            return sys.maxsize
        return -(-(self.reach + step_tokens - 1) // self.block_size) + 1

    def blocks_for(self, num_tokens: int, step_tokens: int) -> int:
        """Most blocks that a request owns at a time on its way to `num_tokens`."""
        return min(-(-num_tokens // self.block_size), self.most_blocks(step_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """One pool of block ids over all groups of a model: a block is any group's, as they all have the same bytes.

    Raises `InvalidInput` without groups or where their blocks differ in bytes, and `CapacityError` where no block is
    left beside the null block.
    """

    num_blocks: int
    """Blocks in memory, the null block included."""
    groups: tuple[KVGroupSpec, ...]
    max_step_tokens: int = MOST_TOKENS
    """Most tokens of one request that a step computes: a windowed group holds them beside the window."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidInput("groups", "a KV cache needs at least one group")
        if len(sizes := {group.bytes_per_block for group in self.groups}) > 1:
            raise InvalidInput("groups", f"blocks of one pool have the same bytes, not {sorted(sizes)}")
        if self.num_blocks < 2:
            raise CapacityError(f"a KV cache of {self.num_blocks} blocks holds nothing: block 0 is the null block")

    @property
    def capacity(self) -> int:
        """Blocks that requests can own."""
        return self.num_blocks - 1

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block id stands for."""
        return self.groups[0].bytes_per_block

    @property
    def max_tokens(self) -> int:
        """Tokens whose KV fits when one request has the whole pool."""
        return bisect_right(range(MOST_TOKENS + 1), self.capacity, key=self.blocks_for) - 1

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks that a request owns at a time on its way to `num_tokens`, over all groups."""
        return sum(group.blocks_for(num_tokens, self.max_step_tokens) for group in self.groups)

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
            need = self.blocks_for(1)
            raise CapacityError(
                f"a request needs {need} KV blocks at least, and the cache has {self.capacity}. "
                f"Give it {(need + 1) * self.bytes_per_block} bytes or more."
            )
        return fitted


def num_blocks_for(budget_bytes: int, groups: Sequence[KVGroupSpec]) -> int:
    """Blocks, the null block included, that a memory budget holds. An id stands for a block of any one group.

    Raises `CapacityError` where fewer than two fit.
    """
    block_bytes = groups[0].bytes_per_block
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
