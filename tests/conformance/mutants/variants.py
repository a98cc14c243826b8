"""Backends that do it differently and are right all the same: the kit has to let them pass."""

from __future__ import annotations

import math
from typing import Any

import torch

from headstock.core.attention import Capabilities, GraphSupport, Mismatch, Sizes, one_of

from .base import EVERYTHING, Plain

VARIANTS: dict[str, type[Plain]] = {}
"""All of them by name."""


def variant(**capabilities: Any):
    """Register a variant that declares these capabilities instead."""

    def register(cls: type[Plain]) -> type[Plain]:
        declared = Capabilities(**EVERYTHING | capabilities)
        cls.capabilities = classmethod(lambda cls, device: declared)
        VARIANTS[cls.__name__] = cls
        return cls

    return register


CARD: dict[str, Any] = {
    "dtypes": frozenset({"bfloat16", "float16"}),
    "kv_formats": frozenset({"bf16", "fp16", "fp8_e4m3"}),
    "kv_scales": frozenset({"tensor"}),
    "head_sizes": one_of(64, 128),
    "head_sizes_v": None,
    "group_sizes": Sizes(high=8),
    "block_sizes": Sizes(low=16, multiple_of=16),
    "kinds": frozenset({"decoder"}),
    "causal": frozenset({True}),
    "windows": frozenset({"left"}),
    "graph": GraphSupport.UNIFORM,
    "max_cache_elements": 2**31 - 1,
}
"""What kernels for accelerators are like."""


@variant(**CARD)
class RoundedWeights(Plain):
    """Rounds the weights to the layer's dtype before they meet V, as tensor cores take them."""

    def sum(self, weights, values):
        dtype = getattr(torch, self.spec.dtype)
        return super().sum(weights.to(dtype).to(self.dtype), values)


@variant(**CARD)
class ScaledQuery(Plain):
    """Scales the query, in the layer's dtype, before it meets K; keys are dequantised to that dtype as well."""

    def attend(self, layer, query, keys, values, n):
        query = (query * self.spec.scale).to(query.dtype)
        return super().attend(layer, query, keys.to(query.dtype), values.to(query.dtype), n)

    def scaled(self, logits):
        return logits


@variant()
class PieceByPiece(Plain):
    """Runs over the keys in pieces of seven, with a running maximum and exponentials of base 2."""

    def attend(self, layer, query, keys, values, n):
        self.values = values.to(self.dtype)[:, self.kv_heads()]
        return super().attend(layer, query, keys, values, n)

    def softmax(self, logits, sinks):
        heads, queries, n = logits.shape
        top = logits.new_full((heads, queries), float("-inf")) if sinks is None else sinks[:, :, 0].expand(-1, queries)
        total = torch.zeros_like(top) if sinks is None else torch.ones_like(top)
        out = logits.new_zeros(heads, queries, self.values.shape[2])
        for first in range(0, n, 7):
            part = logits[:, :, first : first + 7]
            high = torch.maximum(top, part.amax(2))
            safe = high.masked_fill(high == float("-inf"), 0)
            weights = torch.exp2((part - safe[:, :, None]) / math.log(2))
            shrink = torch.exp2((top - safe) / math.log(2))
            values = self.values[first : first + 7]
            out = out * shrink[:, :, None] + torch.einsum("htn,nhd->htd", weights, values)
            total, top = total * shrink + weights.sum(2), high
        self.out = out / total.masked_fill(total == 0, 1)[:, :, None]
        return logits, top + torch.log(total)

    def sum(self, weights, values):
        return self.out.transpose(0, 1)


@variant(needs_zeroed_cache=True)
class WholeBlocks(Plain):
    """Reads whole blocks, masks what lies behind the end, and says that it needs finite numbers there."""

    def slots(self, plan, row):
        size = self.spec.block_size
        blocks = plan.block_table[row, : -(-self.num_keys(plan, row) // size)].long()
        return (blocks[:, None] * size + torch.arange(size)).flatten()

    def attend(self, layer, query, keys, values, n):
        self.n = n
        return super().attend(layer, query, keys, values, n)

    def visible(self, i, j):
        return super().visible(i, j) & (j < self.n)


@variant(
    kv_sources=frozenset({"ragged"}),
    layouts=(),
    block_sizes=Sizes(only=frozenset()),
    zero_length_rows=False,
    batch_invariant=False,
    graph=GraphSupport.NEVER,
    kv_formats=frozenset({"fp32", "bf16", "fp16", "fp64"}),
)
class RaggedOnly(Plain):
    """Has no cache."""


@variant(
    dtypes=frozenset({"float32"}),
    kv_formats=frozenset({"int8_per_head"}),
    kv_scales=frozenset({"head"}),
    kv_sources=frozenset({"cache"}),
    decode_query_len=4,
    padded_seq_len=1,
    exact_seq_lens=True,
    any_scale=False,
    softcap=False,
    alibi=False,
    sinks=False,
    lse=False,
    windows=frozenset(),
    layouts=("hnd",),
)
class Int8Only(Plain):
    """Stores eight bits, and nothing else."""


@variant()
class Fussy(Plain):
    """Refuses combinations."""

    @classmethod
    def refusals(cls, spec, device):
        if spec.softcap and spec.sinks:
            return (Mismatch(field="sinks", asked="with a softcap", offered="without"),)
        if spec.dtype == "float32" and spec.head_size % 8:
            return (Mismatch(field="head_size", asked=spec.head_size, offered="multiples of 8 in float32"),)
        return ()
