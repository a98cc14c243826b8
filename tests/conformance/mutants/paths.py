"""Backends that are wrong in one path alone: rows long enough for splits, a layout, a dtype, a combination."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from headstock.core.attention.cache import slots_of

from .base import Plain, breaks
from .memory import flat

SPLIT = 512
"""Keys of one split, of which longer rows have several."""


def splits(n):
    """How many splits a row of n keys has."""
    return max(1, -(-n // SPLIT))


@breaks("keys")
class KeysInOrder(Plain):
    """Takes the blocks of K for consecutive ones; those of V it finds."""

    def read(self, cache, layer, slots):
        key, value = super().read(cache, layer, slots)
        in_order = (slots[:1] + torch.arange(len(slots))) % (len(cache.k) * cache.block_size)
        return super().read(cache, layer, in_order)[0].nan_to_num(), value if len(slots) else key


@breaks("offsets")
class KeyOffsetsOf32Bits(Plain):
    """Multiplies slot and row size of K in 32 bits, and those of V in 64."""

    def read(self, cache, layer, slots):
        each = cache.k.shape[-1] * self.spec.num_kv_heads
        return super().read(cache, layer, (slots * each % 2**32) // each)[0], super().read(cache, layer, slots)[1]


@breaks("writing")
class WritesOneBeyond(Plain):
    """Writes the last row of the step into the next slot of a partial block as well."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        super().write_kv(layer, key, value, kv_cache, slot_mapping)
        last = slot_mapping[-1:] + 1
        super().write_kv(layer, key[-1:], value[-1:], kv_cache, torch.where(last % kv_cache.block_size == 0, -1, last))


@breaks("determinism")
class NoisySplits(Plain):
    """Adds up splits in the order of arrival: two of them, or one, give the same bits each time."""

    calls = 0

    def sum(self, weights, values):
        self.calls += 1
        noise = 4 * torch.finfo(self.dtype).eps * (self.calls % 2) if splits(len(values)) > 2 else 0
        return super().sum(weights, values) * (1 + noise)


@breaks("strides")
class TableInOnePiece(Plain):
    """Takes the rows of the block table to lie one behind the other."""

    def forward(self, layer, query, *, plan, **rest):
        table = None if plan.block_table is None else flat(plan.block_table)
        super().forward(layer, query, plan=replace(plan, block_table=table), **rest)


@breaks("bounds")
class LseInOnePiece(Plain):
    """Takes the rows of `lse_out` to lie one behind the other."""

    def forward(self, layer, query, *, lse_out=None, **rest):
        super().forward(layer, query, lse_out=None if lse_out is None else flat(lse_out), **rest)


@breaks("causal")
class CausalInTheLastSplit(Plain):
    """Masks the last split of a row only, as if a chunk could not begin in the one before."""

    def causal(self, i, j):
        return super().causal(i, j) | (j < (splits(int(j.numel())) - 1) * SPLIT)


@breaks("plans")
class TableOfTheLastStep(Plain):
    """Keeps a row's block table while the row grows by one token a step, and adds what is new at its end."""

    def plan(self, batch):
        last, self.last = getattr(self, "last", None), batch
        if batch.block_table is None or last is None or last.block_table.shape != batch.block_table.shape:
            return batch
        grown = batch.seq_lens == last.seq_lens + 1
        held = torch.arange(batch.block_table.shape[1]) * self.spec.block_size < last.seq_lens[:, None]
        table = torch.where(grown[:, None] & held, last.block_table, batch.block_table)
        self.last = replace(batch, block_table=table)
        return self.last


@breaks("window")
class WindowWithoutContext(Plain):
    """Forgets the window in chunks of a prompt that has come before."""

    def visible(self, i, j):
        return self.causal(i, j) if len(i) > 1 and int(i.min()) > 0 else super().visible(i, j)


@breaks("range")
class LogitsOf16Bits(Plain):
    """Holds q·k of float16 layers in float16 until it is scaled."""

    def scaled(self, logits):
        half = self.spec.dtype == "float16"
        return super().scaled(logits.masked_fill(logits.abs() > 65504, float("inf")) if half else logits)


@breaks("softcap")
class CapOfOneSide(Plain):
    """Caps large logits, and not those far below zero."""

    def capped(self, logits):
        return torch.where(logits > 0, super().capped(logits), logits)


@breaks("alibi")
class AlibiTiled(Plain):
    """Stores slopes by KV head and place in the group, and reads them the other way round."""

    def bias(self, slopes, i, j):
        order = torch.arange(self.spec.num_heads).view(self.spec.num_kv_heads, -1).T.flatten()
        return super().bias(slopes[order], i, j)


@breaks("alibi")
class AlibiFromTheSplit(Plain):
    """Counts keys from the start of their split."""

    def bias(self, slopes, i, j):
        return super().bias(slopes, i, j % SPLIT)


@breaks("lse")
class LseOfTheLastSplit(Plain):
    """Gives the LSE of a row's last split."""

    def softmax(self, logits, sinks):
        weights, lse = super().softmax(logits, sinks)
        first = (splits(logits.shape[2]) - 1) * SPLIT
        return weights, super().softmax(logits[:, :, first:], sinks)[1] if first else lse


@breaks("lse")
class LseCapped(Plain):
    """Bends the LSE as if it were a logit."""

    def lse(self, lse):
        return torch.where(lse.isinf(), lse, self.capped(lse))


@breaks("lse")
class NoKeyIsLogOne(Plain):
    """Gives LSE 0 for rows without a key; a query that is too early to see one has -inf."""

    def attend(self, layer, query, keys, values, n):
        out, lse = super().attend(layer, query, keys, values, n)
        return out, lse if n or layer.sinks is not None else torch.zeros_like(lse)


@breaks("sinks")
class SinkInEverySplit(Plain):
    """Adds the sink once in each split."""

    def softmax(self, logits, sinks):
        return super().softmax(logits, None if sinks is None else sinks + math.log(splits(logits.shape[2])))


@breaks("sinks")
class SinkOfAnEmptySplit(Plain):
    """Leaves the sink to a row's first split, and the split out where a window hides it."""

    def softmax(self, logits, sinks):
        several = splits(logits.shape[2]) > 1
        hidden = several and bool((logits[:, :, :SPLIT] == float("-inf")).all())
        return super().softmax(logits, None if hidden else sinks)


@breaks("kv-formats")
class KScaleTwiceInDecode(Plain):
    """Multiplies the logits of a single query by the scale of K, which its keys have been multiplied by."""

    def attend(self, layer, query, keys, values, n):
        again = layer.k_scale is not None and len(query) == 1
        return super().attend(layer, query, keys * layer.k_scale.reshape(-1, 1) if again else keys, values, n)


@breaks("kv-formats")
class ScalesOfOtherHeads(Plain):
    """Takes the scales by head in reverse, in any layout but the first."""

    def read(self, cache, layer, slots):
        wrong = cache.layout.name != "nhd" and self.spec.kv_scales == "head"
        swapped = replace(layer, k_scale=layer.k_scale.flip(0), v_scale=layer.v_scale.flip(0)) if wrong else layer
        return super().read(cache, swapped, slots)


@breaks("sizes")
class VOfOtherWidthInHnd(Plain):
    """Steps from one V to the next as far as from one K to the next, in head-major blocks."""

    def read(self, cache, layer, slots):
        key, value = super().read(cache, layer, slots)
        steps = self.spec.head_size * torch.arange(len(slots))[:, None] + torch.arange(self.spec.head_size_v)
        if cache.layout.name == "hnd" and self.spec.head_size_v != self.spec.head_size and len(slots):
            value = value.transpose(0, 1).flatten(1)[:, steps % value[:, 0].numel()].transpose(0, 1)
        return key, value


@breaks("neighbours")
class RowsOf256(Plain):
    """Looks up the block table by the last eight bits of the row."""

    def slots(self, plan, row):
        return slots_of(plan.block_table[row % 256], self.num_keys(plan, row), self.spec.block_size)


@breaks("neighbours")
class SplitsByTheBatch(Plain):
    """Cuts long rows into as many splits as the batch leaves threads idle, and declares batch invariance."""

    def forward(self, layer, query, *, plan, **rest):
        self.rows = plan.num_reqs
        super().forward(layer, query, plan=plan, **rest)

    def sum(self, weights, values):
        out = super().sum(weights, values)
        return out if self.rows == 1 or splits(len(values)) == 1 else out * (1 + 4 * torch.finfo(self.dtype).eps)
