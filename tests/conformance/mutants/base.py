"""A plain and correct backend, each step of which is a method: a mutant is this one with one of them wrong."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from headstock.core.attention import (
    ANY,
    KV_FORMATS,
    AttentionBackend,
    AttentionBatch,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
)
from headstock.core.attention.cache import slots_of

EVERYTHING: dict[str, Any] = {
    "dtypes": frozenset({"float64", "float32", "bfloat16", "float16"}),
    "kv_formats": frozenset(KV_FORMATS),
    "kv_scales": frozenset({"tensor", "head"}),
    "head_sizes": ANY,
    "head_sizes_v": ANY,
    "group_sizes": ANY,
    "block_sizes": ANY,
    "kinds": frozenset({"decoder", "encoder", "cross"}),
    "kv_sources": frozenset({"cache", "ragged"}),
    "causal": frozenset({True, False}),
    "windows": frozenset({"left", "right"}),
    "any_scale": True,
    "softcap": True,
    "alibi": True,
    "sinks": True,
    "lse": True,
    "batch_invariant": True,
    "layouts": ("nhd", "hnd"),
    "graph": GraphSupport.ALWAYS,
    "zero_length_rows": True,
    "max_cache_elements": 2**63 - 1,
}


class Plain(AttentionBackend[AttentionBatch]):
    """Row by row, with masks of -inf, in float32 or better."""

    conventions: tuple[str, ...] = ()
    """What a mutant breaks."""
    raises = False
    """Whether raising is the mistake; all other mutants run through."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return Capabilities(**EVERYTHING)

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None) -> None:
        for row in range(plan.num_reqs):
            start, stop = int(plan.query_start_loc[row]), int(plan.query_start_loc[row + 1])
            keys, values = self.keys_and_values(layer, plan, row, key, value, kv_cache)
            result, lse = self.attend(layer, query[start:stop], keys, values, self.num_keys(plan, row))
            self.give(out, start, stop, result)
            if lse_out is not None:
                self.give_lse(lse_out, start, stop, lse)

    def give(self, out: Tensor, start: int, stop: int, result: Tensor) -> None:
        out[start:stop] = result

    def give_lse(self, lse_out: Tensor, start: int, stop: int, lse: Tensor) -> None:
        lse_out[start:stop] = lse

    # Reading

    def num_keys(self, plan: AttentionBatch, row: int) -> int:
        return int(plan.seq_lens[row])

    def keys_and_values(
        self,
        layer: LayerParams,
        plan: AttentionBatch,
        row: int,
        key: Tensor | None,
        value: Tensor | None,
        cache: KVCache | None,
    ) -> tuple[Tensor, Tensor]:
        """K (n, Hkv, D) and V of a row."""
        if cache is None:
            rows = self.ragged_rows(plan, row)
            return key[rows], value[rows]
        return self.read(cache, layer, self.slots(plan, row))

    def ragged_rows(self, plan: AttentionBatch, row: int) -> slice:
        return slice(int(plan.key_start_loc[row]), int(plan.key_start_loc[row + 1]))

    def slots(self, plan: AttentionBatch, row: int) -> Tensor:
        return slots_of(plan.block_table[row], self.num_keys(plan, row), self.spec.block_size)

    def read(self, cache: KVCache, layer: LayerParams, slots: Tensor) -> tuple[Tensor, Tensor]:
        return cache.layout.gather(cache, layer, slots, self.dtype)

    # Arithmetic

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.spec.dtype == "float64" else torch.float32

    def attend(self, layer: LayerParams, query: Tensor, keys: Tensor, values: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """out (t, Hq, Dv) and LSE (t, Hq) of the last t of n tokens."""
        heads = self.kv_heads()
        q, k, v = query.to(self.dtype), keys.to(self.dtype)[:, heads], values.to(self.dtype)[:, heads]
        i, j = self.positions(len(q), n)[:, None], torch.arange(len(k))[None, :]
        logits = self.logits(layer, torch.einsum("thd,nhd->htn", q, k), i, j)
        sinks = layer.sinks
        weights, lse = self.softmax(logits, None if sinks is None else self.sinks(sinks.to(self.dtype))[:, None, None])
        return self.sum(weights, v), self.lse(lse).T

    def kv_heads(self) -> Tensor:
        """The KV head of each query head."""
        return torch.arange(self.spec.num_heads) // self.spec.group_size

    def positions(self, queries: int, n: int) -> Tensor:
        return n - queries + torch.arange(queries)

    def logits(self, layer: LayerParams, logits: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """From q·k (Hq, t, n): scale, softcap, ALiBi, mask."""
        logits = self.capped(self.scaled(logits))
        if layer.alibi_slopes is not None:
            logits = logits + self.bias(layer.alibi_slopes.to(self.dtype)[:, None, None], i, j)
        return logits.masked_fill(~self.visible(i, j), float("-inf"))

    def scaled(self, logits: Tensor) -> Tensor:
        return logits * self.spec.scale

    def capped(self, logits: Tensor) -> Tensor:
        cap = self.spec.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def bias(self, slopes: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -slopes * (i - j).abs()

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        left, right = self.window()
        seen = torch.ones_like(i - j, dtype=torch.bool)
        if left >= 0:
            seen &= j >= i - left
        if right >= 0:
            seen &= j <= i + right
        return seen & self.causal(i, j)

    def causal(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (not self.spec.causal)

    def window(self) -> tuple[int, int]:
        return self.spec.window or (-1, -1)

    def sinks(self, sinks: Tensor) -> Tensor:
        return sinks

    def softmax(self, logits: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights (Hq, t, n) and natural LSE (Hq, t); sinks (Hq, 1, 1)."""
        parts = logits if sinks is None else torch.cat([logits, sinks.expand(*logits.shape[:2], 1)], dim=2)
        lse = torch.logsumexp(parts, dim=2) if parts.shape[2] else logits.new_full(logits.shape[:2], float("-inf"))
        return self.weights(logits, lse), lse

    def weights(self, logits: Tensor, lse: Tensor) -> Tensor:
        """exp(logit − LSE); of a row that sees nothing, 0. NaN stays."""
        return torch.exp(logits - lse.masked_fill(lse == float("-inf"), 0)[:, :, None])

    def lse(self, lse: Tensor) -> Tensor:
        return lse

    def sum(self, weights: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("htn,nhd->thd", weights, values)


MUTANTS: dict[str, type[Plain]] = {}
"""All of them by name."""


def breaks(*conventions: str):
    """Register a mutant and say which convention it breaks; the check that catches it has to be named for one."""

    def register(cls: type[Plain]) -> type[Plain]:
        cls.conventions = conventions
        cls.mistake = inspect.getdoc(cls)
        assert cls.__name__ not in MUTANTS
        MUTANTS[cls.__name__] = cls
        return cls

    return register
