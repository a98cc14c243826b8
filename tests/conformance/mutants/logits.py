"""Backends that do the wrong thing to logits, sums and heads."""

from __future__ import annotations

import math

import torch

from .base import Plain, breaks


@breaks("heads")
class TiledHeads(Plain):
    """Maps query head h to KV head h % Hkv."""

    def kv_heads(self):
        return torch.arange(self.spec.num_heads) % self.spec.num_kv_heads


@breaks("heads")
class FirstHeadOnly(Plain):
    """Reads the first KV head for all query heads."""

    def kv_heads(self):
        return torch.zeros(self.spec.num_heads, dtype=torch.long)


@breaks("heads")
class GroupsToAPowerOfTwo(Plain):
    """Rounds the size of a group down to a power of two."""

    def kv_heads(self):
        group = 2 ** int(math.log2(self.spec.group_size))
        return (torch.arange(self.spec.num_heads) // group).clamp_max(self.spec.num_kv_heads - 1)


@breaks("scale")
class ScaleIgnored(Plain):
    """Does not scale."""

    def scaled(self, logits):
        return logits


@breaks("scale")
class ScaleTwice(Plain):
    """Scales q, and then the logits."""

    def scaled(self, logits):
        return logits * self.spec.scale**2


@breaks("scale")
class ScaleOfHeadSize(Plain):
    """Scales by 1/sqrt(head size), whatever the layer says."""

    def scaled(self, logits):
        return logits / math.sqrt(self.spec.head_size)


@breaks("scale")
class ScaleTwiceInDecode(Plain):
    """Scales twice where a row has one query."""

    def scaled(self, logits):
        return logits * self.spec.scale ** (2 if logits.shape[1] == 1 else 1)


@breaks("range")
class NoMaxShift(Plain):
    """Adds up exponentials of the logits as they are."""

    def softmax(self, logits, sinks):
        total = torch.exp(logits).sum(2) + (0 if sinks is None else torch.exp(sinks).squeeze(2))
        weights = torch.exp(logits) / total.masked_fill(total == 0, 1)[:, :, None]
        return weights, torch.log(total)


@breaks("softcap")
class CapIgnored(Plain):
    """Drops the softcap."""

    def capped(self, logits):
        return logits


@breaks("softcap")
class CapAfterMask(Plain):
    """Caps what the mask has made -inf: a masked key weighs e^-cap."""

    def logits(self, layer, logits, i, j):
        cap = self.spec.softcap
        logits = super().logits(layer, logits, i, j)
        return logits if cap is None else logits.nan_to_num(neginf=-cap)


@breaks("softcap")
class CapBeforeScale(Plain):
    """Caps q·k before it is scaled."""

    def logits(self, layer, logits, i, j):
        cap = self.spec.softcap
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return super().logits(layer, logits, i, j)

    def capped(self, logits):
        return logits


@breaks("softcap")
class CapOfPrefillOnly(Plain):
    """Forgets the softcap where a row has one query."""

    def capped(self, logits):
        return super().capped(logits) if logits.shape[1] > 1 else logits


@breaks("softcap")
class HardCap(Plain):
    """Clamps logits at the softcap."""

    def capped(self, logits):
        cap = self.spec.softcap
        return logits if cap is None else logits.clamp(-cap, cap)


@breaks("alibi")
class AlibiUpwards(Plain):
    """Adds the distance instead of subtracting it."""

    def bias(self, slopes, i, j):
        return -super().bias(slopes, i, j)


@breaks("alibi")
class AlibiByKey(Plain):
    """Adds slope * j, which differs from -slope * (i - j) by a constant only while no key comes after the query."""

    def bias(self, slopes, i, j):
        return slopes * (j + 0 * i)


@breaks("alibi")
class AlibiTopLeft(Plain):
    """Counts a query's position from the start of the chunk."""

    def bias(self, slopes, i, j):
        return super().bias(slopes, i - i.min(), j)


@breaks("alibi")
class AlibiByKVHead(Plain):
    """Takes the slope of the KV head."""

    def bias(self, slopes, i, j):
        return super().bias(slopes[self.kv_heads()], i, j)


@breaks("alibi")
class AlibiIgnored(Plain):
    """Knows no slopes."""

    def bias(self, slopes, i, j):
        return 0 * slopes


@breaks("lse")
class LseOfBase2(Plain):
    """Gives the LSE to base 2."""

    def lse(self, lse):
        return lse / math.log(2)


@breaks("lse")
class LseTransposed(Plain):
    """Writes the LSE as (Hq, T) into memory for (T, Hq)."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        if lse_out is not None:
            lse_out.copy_(lse_out.T.reshape(lse_out.shape))


@breaks("lse")
class LseIsTheLargest(Plain):
    """Gives the largest logit instead of the log-sum-exp."""

    def softmax(self, logits, sinks):
        weights, lse = super().softmax(logits, sinks)
        return weights, logits.amax(2) if logits.shape[2] else lse


@breaks("lse")
class LseOfDecodeOnly(Plain):
    """Fills the LSE only where a row has one query."""

    def give_lse(self, lse_out, start, stop, lse):
        if stop - start == 1:
            super().give_lse(lse_out, start, stop, lse)


@breaks("sinks")
class SinkTwice(Plain):
    """Adds the sink twice, as two splits would."""

    def sinks(self, sinks):
        return sinks + math.log(2)


@breaks("sinks")
class SinkDropped(Plain):
    """Knows no sinks."""

    def sinks(self, sinks):
        return sinks - 1e4


@breaks("sinks")
class SinkScaled(Plain):
    """Scales the sink like a logit."""

    def sinks(self, sinks):
        return sinks * self.spec.scale


@breaks("sinks")
class SinkOfBase2(Plain):
    """Takes the sink for an exponent of 2."""

    def sinks(self, sinks):
        return sinks * math.log(2)


@breaks("sinks")
class SinkByKVHead(Plain):
    """Takes the sink of the KV head."""

    def sinks(self, sinks):
        return sinks[self.kv_heads()]


@breaks("sinks")
class SinkCapped(Plain):
    """Caps the sink like a logit."""

    def sinks(self, sinks):
        return self.capped(sinks)


@breaks("sinks")
class SinkNotInLse(Plain):
    """Leaves the sink out of the LSE."""

    def softmax(self, logits, sinks):
        weights, _ = super().softmax(logits, sinks)
        return weights, super().softmax(logits, None)[1]


@breaks("sinks")
class SinkInDecodeOnly(Plain):
    """Drops the sink where a row has several queries."""

    def softmax(self, logits, sinks):
        return super().softmax(logits, None if logits.shape[1] > 1 else sinks)


@breaks("sinks")
class SinkHidesEmptyRows(Plain):
    """Gives LSE -inf for a row without a key, sink or not."""

    def attend(self, layer, query, keys, values, n):
        out, lse = super().attend(layer, query, keys, values, n)
        return out, lse if n else torch.full_like(lse, float("-inf"))


@breaks("precision")
class SumsOf16Bits(Plain):
    """Adds up weighted values in the layer's dtype, key by key, where there are very many."""

    def sum(self, weights, values):
        if len(values) < 1000:
            return super().sum(weights, values)
        total = super().sum(weights[:, :, :0], values[:0]).to(getattr(torch, self.spec.dtype))
        for key in range(len(values)):
            total = total + super().sum(weights[:, :, key : key + 1], values[key : key + 1]).to(total.dtype)
        return total.float()
