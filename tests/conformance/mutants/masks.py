"""Backends that let a query see the wrong keys."""

from __future__ import annotations

import torch

from headstock.core.attention.cache import slots_of

from .base import Plain, breaks


@breaks("keys")
class OnePastTheEnd(Plain):
    """Reads one key past the end of each row."""

    def num_keys(self, plan, row):
        return super().num_keys(plan, row) + 1


@breaks("keys")
class NullBlock(Plain):
    """Attends to the first slot of the null block that pads the block table."""

    def slots(self, plan, row):
        return torch.cat([super().slots(plan, row), torch.zeros(1, dtype=torch.long)])

    def causal(self, i, j):
        return super().causal(i, j) | (j == j.max())


@breaks("keys")
class NoPartialBlock(Plain):
    """Drops the last block of a row unless it is full."""

    def slots(self, plan, row):
        n = self.num_keys(plan, row)
        return super().slots(plan, row)[: n - n % self.spec.block_size or n]


@breaks("keys")
class BlocksInOrder(Plain):
    """Takes a row's blocks for consecutive ones, from its first."""

    def slots(self, plan, row):
        return int(plan.block_table[row, 0]) * self.spec.block_size + torch.arange(self.num_keys(plan, row))

    def read(self, cache, layer, slots):
        return super().read(cache, layer, slots % (len(cache.k) * cache.block_size))


@breaks("keys")
class FirstRowsTable(Plain):
    """Reads the first row's block table for every row."""

    def slots(self, plan, row):
        return slots_of(plan.block_table[0], self.num_keys(plan, row), self.spec.block_size)


@breaks("keys")
class OnlyTheStepsRows(Plain):
    """Attends to the step's own keys and forgets those that are in the cache."""

    def visible(self, i, j):
        return super().visible(i, j) & (j >= i.min())


@breaks("causal")
class TopLeft(Plain):
    """Aligns causality top-left: the first query sees the first key only."""

    def causal(self, i, j):
        return (j <= i - i.min()) | (not self.spec.causal)


@breaks("causal")
class CausalIgnored(Plain):
    """Shows every key to every query."""

    def causal(self, i, j):
        return torch.ones_like(i - j, dtype=torch.bool)


@breaks("causal")
class CausalAlways(Plain):
    """Is causal where the layer is not."""

    def causal(self, i, j):
        return j <= i


@breaks("causal")
class NotItself(Plain):
    """A query does not see its own key, unless it is the first."""

    def causal(self, i, j):
        return super().causal(i, j) & ((j != i) | (i == 0) | (not self.spec.causal))


@breaks("window")
class WindowOneMore(Plain):
    """A window of W sees W + 1 keys."""

    def window(self):
        left, right = super().window()
        return left + 1 if left >= 0 else left, right


@breaks("window")
class WindowOneLess(Plain):
    """A window of W sees W - 1 keys."""

    def window(self):
        left, right = super().window()
        return left - 1 if left > 0 else left, right


@breaks("window")
class WindowIgnored(Plain):
    """There are no windows."""

    def window(self):
        return -1, -1


@breaks("window")
class WindowOfPrefillOnly(Plain):
    """Forgets the window where a row has one query."""

    def visible(self, i, j):
        return super().visible(i, j) if len(i) > 1 else self.causal(i, j)


@breaks("window")
class WindowOfDecodeOnly(Plain):
    """Forgets the window where a row has several queries."""

    def visible(self, i, j):
        return super().visible(i, j) if len(i) == 1 else self.causal(i, j)


@breaks("window")
class WindowFromTheChunk(Plain):
    """Starts the window anew with each chunk: a query sees no key from before the window of the chunk's first."""

    def visible(self, i, j):
        left, _ = self.window()
        seen = super().visible(i, j)
        return seen & (j >= i.min() - max(0, left - len(i))) if left >= 0 and len(i) > 1 else seen


@breaks("window")
class WindowInBlocks(Plain):
    """Rounds the window's start down to the start of a block."""

    def visible(self, i, j):
        left, _ = self.window()
        size = self.spec.block_size
        if left < 0:
            return super().visible(i, j)
        return (j >= torch.div((i - left).clamp_min(0), size, rounding_mode="floor") * size) & self.causal(i, j)


@breaks("window")
class NullIsPadding(Plain):
    """Takes a row whose table begins with the null block for one of padding."""

    def num_keys(self, plan, row):
        return super().num_keys(plan, row) if plan.block_table is None or plan.block_table[row, 0] else 0


@breaks("window")
class OneSidedWindow(Plain):
    """Ignores the right side of a window that is not causal."""

    def window(self):
        return super().window()[0], -1


@breaks("empty-rows")
class MeanOfV(Plain):
    """Masks with a finite number: a row that sees nothing gives the mean of V."""

    def logits(self, layer, logits, i, j):
        return super().logits(layer, logits, i, j).clamp_min(-1e9)


@breaks("empty-rows")
class EmptyIsNaN(Plain):
    """Divides 0 by 0 where a query sees nothing."""

    def weights(self, logits, lse):
        return torch.exp(logits - lse[:, :, None])


@breaks("lse")
class EmptyIsPlusInf(Plain):
    """Gives +inf for the LSE of a row that sees nothing."""

    def lse(self, lse):
        return lse.masked_fill(lse == float("-inf"), float("inf"))


@breaks("empty-rows")
class EmptyIsLeft(Plain):
    """Leaves the output of rows without a key as it was."""

    def give(self, out, start, stop, result):
        if bool((result != 0).any()):
            out[start:stop] = result


@breaks("empty-rows")
class NoQueryIsOne(Plain):
    """Computes at least one query for each row, and so overwrites the next row's first."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        for row in range(plan.num_reqs):
            start = int(plan.query_start_loc[row])
            if start == int(plan.query_start_loc[row + 1]) < plan.num_tokens:
                out[start] = 0
