"""Paged KV cache bookkeeping: blocks, prefix cache, block tables. Ids and counts only; the tensors are elsewhere."""

from __future__ import annotations

from .block_pool import BlockPool
from .grouping import KVLayer, group_layers, places
from .hashing import Adapter, BlockChain, BlockHasher, BlockKey, Item, PrefixIdentity
from .manager import BlockIds, KVCacheManager, KVRequest, PrefixHit
from .prefix_index import HashChainIndex, PrefixIndex
from .spec import FULL_RETENTION, NULL_BLOCK, KVCacheConfig, KVGroupSpec, Retention, num_blocks_for, window_retention
from .stats import PrefixCacheStats

__all__ = [
    "FULL_RETENTION",
    "NULL_BLOCK",
    "Adapter",
    "BlockChain",
    "BlockHasher",
    "BlockIds",
    "BlockKey",
    "BlockPool",
    "HashChainIndex",
    "Item",
    "KVCacheConfig",
    "KVCacheManager",
    "KVGroupSpec",
    "KVLayer",
    "KVRequest",
    "PrefixCacheStats",
    "PrefixHit",
    "PrefixIdentity",
    "PrefixIndex",
    "Retention",
    "group_layers",
    "num_blocks_for",
    "places",
    "window_retention",
]
