"""Backends that read, write or keep what they should not."""

from __future__ import annotations

import torch

from headstock.core.attention.formats import dequantize

from .base import Plain, breaks


@breaks("determinism")
class Noisy(Plain):
    """Differs in the last bits from call to call, as sums in the order of arrival do."""

    calls = 0

    def sum(self, weights, values):
        self.calls += 1
        return super().sum(weights, values) * (1 + 4 * torch.finfo(self.dtype).eps * (self.calls % 3))


@breaks("unowned")
class LeakingTail(Plain):
    """Reads whole blocks and multiplies what lies behind the end by a weight of 0."""

    def slots(self, plan, row):
        size = self.spec.block_size
        blocks = plan.block_table[row, : -(-self.num_keys(plan, row) // size)].long()
        return (blocks[:, None] * size + torch.arange(size)).flatten()

    def attend(self, layer, query, keys, values, n):
        self.n = n
        return super().attend(layer, query, keys, values, n)

    def visible(self, i, j):
        return super().visible(i, j) & (j < self.n)


@breaks("unowned")
class LeakingMask(LeakingTail):
    """Reads whole blocks and adds -inf to the logits of what lies behind the end: NaN stays NaN."""

    def logits(self, layer, logits, i, j):
        masked = super().logits(layer, logits, i, j)
        return masked + 0 * logits

    def sum(self, weights, values):
        return super().sum(weights, values.nan_to_num(0, 0, 0))


@breaks("nan")
class NaNIsZero(Plain):
    """Puts 0 in the place of every NaN."""

    def sum(self, weights, values):
        return super().sum(weights, values).nan_to_num()


@breaks("bounds")
class WholeVectors(Plain):
    """Writes whole vectors of eight rows, and so beyond the last one."""

    def give(self, out, start, stop, result):
        rows = -(-(stop - start) // 8) * 8
        wide = out.as_strided((rows, *out.shape[1:]), out.stride(), out.storage_offset() + start * out.stride(0))
        wide[: stop - start] = result
        if stop == len(out):
            wide[stop - start :] = 0


@breaks("bounds")
class BetweenRows(Plain):
    """Takes `out` for contiguous and clears it as one piece."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        if not out.is_contiguous():
            out.as_strided((out.shape[0] * out.stride(0) + 1,), (1,), out.storage_offset()).zero_()
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)


@breaks("inputs")
class WritesTheCache(Plain):
    """Puts the step's keys into the cache in `forward`, into the next slot."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        if kv_cache is not None and plan.num_tokens:
            kv_cache.k[0].zero_()


@breaks("inputs")
class ScalesTheQuery(Plain):
    """Multiplies the query by the scale where it lies."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        query *= self.spec.scale


@breaks("writing")
class WritesSlotMinusOne(Plain):
    """Takes slot -1 for an index: padding is written to the last slot."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        total = kv_cache.block_size * len(kv_cache.k)
        super().write_kv(layer, key, value, kv_cache, slot_mapping % total)


@breaks("writing")
class WritesWholeBlocks(Plain):
    """Clears the rest of a block when it writes the block's first slot."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        size = kv_cache.block_size
        first = slot_mapping[(slot_mapping >= 0) & (slot_mapping % size == 0)]
        for i in range(1, size):
            zero = key.new_zeros(len(first), *key.shape[1:]), value.new_zeros(len(first), *value.shape[1:])
            super().write_kv(layer, *zero, kv_cache, first + i)
        super().write_kv(layer, key, value, kv_cache, slot_mapping)


@breaks("writing")
class WritesContiguousRows(Plain):
    """Reads key and value as if their rows lay one behind the other."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        super().write_kv(layer, *map(flat, (key, value)), kv_cache, slot_mapping)


@breaks("writing")
class WritesKForV(Plain):
    """Writes K into both planes where their sizes allow it."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        super().write_kv(layer, key, key if key.shape == value.shape else value, kv_cache, slot_mapping)


@breaks("strides")
class ContiguousQuery(Plain):
    """Reads the query as if its rows lay one behind the other."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(
            layer, flat(query), key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out
        )


@breaks("ragged")
class QueryOffsets(Plain):
    """Finds the keys of ragged rows by the offsets of their queries."""

    def ragged_rows(self, plan, row):
        if plan.num_reqs == 1 or int(plan.key_start_loc[-1]) < int(plan.query_start_loc[-1]):
            return super().ragged_rows(plan, row)
        start = int(plan.query_start_loc[row])
        return slice(start, start + self.num_keys(plan, row))


@breaks("padding")
class CountsPadding(Plain):
    """Takes rows of padding for rows: what they read is nothing, and 0 / 0 is NaN."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        out[plan.num_tokens :] = float("nan")


@breaks("lengths")
class UpperBound(Plain):
    """Takes the upper bound of a length for the length."""

    def num_keys(self, plan, row):
        return int(plan.seq_lens_cpu_upper_bound[row])


@breaks("kv-formats")
class KScaleIgnored(Plain):
    """Does not multiply stored keys by their scale."""

    def read(self, cache, layer, slots):
        key, value = super().read(cache, layer, slots)
        return (key if layer.k_scale is None else key / layer.k_scale.reshape(-1, 1)), value


@breaks("kv-formats")
class VScaleIgnored(Plain):
    """Does not multiply stored values by their scale."""

    def read(self, cache, layer, slots):
        key, value = super().read(cache, layer, slots)
        return key, (value if layer.v_scale is None else value / layer.v_scale.reshape(-1, 1))


@breaks("kv-formats")
class OneScaleForAllHeads(Plain):
    """Reads scales by head as one scalar: the first."""

    def read(self, cache, layer, slots):
        keys = cache.layout.gather_rows(cache.k, slots, cache.block_size)
        values = cache.layout.gather_rows(cache.v, slots, cache.block_size)
        first = [None if s is None else s.flatten()[0] for s in (layer.k_scale, layer.v_scale)]
        return dequantize(keys, first[0], self.dtype), dequantize(values, first[1], self.dtype)


@breaks("kv-formats")
class ScaleSwapped(Plain):
    """Takes the scale of K for V, and that of V for K."""

    def read(self, cache, layer, slots):
        keys = cache.layout.gather_rows(cache.k, slots, cache.block_size)
        values = cache.layout.gather_rows(cache.v, slots, cache.block_size)
        return dequantize(keys, layer.v_scale, self.dtype), dequantize(values, layer.k_scale, self.dtype)


@breaks("kv-formats")
class WritesUnscaled(Plain):
    """Stores rows without dividing them by the scale."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        bare = type(layer)(name=layer.name, spec=layer.spec)
        super().write_kv(bare, key, value, kv_cache, slot_mapping)


@breaks("kv-formats")
class WrapsAround(Plain):
    """Lets integers run over where values are too large for the format."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        if kv_cache.k.dtype == torch.int8:
            key, value = (
                (((x.float() / s.reshape(-1, 1)).round() + 128) % 256 - 128) * s.reshape(-1, 1)
                for x, s in ((key, layer.k_scale), (value, layer.v_scale))
            )
        super().write_kv(layer, key, value, kv_cache, slot_mapping)


@breaks("dtypes")
class DoubleInSingle(Plain):
    """Computes in float32 where the layer is float64."""

    dtype = torch.float32


@breaks("dtypes")
class BFloat16InFloat8(Plain):
    """Rounds the logits of bfloat16 layers to three bits."""

    def scaled(self, logits):
        logits = super().scaled(logits)
        return logits.to(torch.float8_e5m2).to(self.dtype) if self.spec.dtype == "bfloat16" else logits


@breaks("sizes")
class VAsWideAsK(Plain):
    """Gives V as many channels as K has."""

    def sum(self, weights, values):
        size = min(self.spec.head_size, values.shape[2])
        out = values.new_zeros(weights.shape[1], *values.shape[1:])
        out[:, :, :size] = super().sum(weights, values[:, :, :size])
        return out


@breaks("sizes")
class BlocksOf16(Plain):
    """Takes blocks larger than 16 for blocks of 16."""

    def slots(self, plan, row):
        if self.spec.block_size <= 16:
            return super().slots(plan, row)
        n = self.num_keys(plan, row)
        j = torch.arange(n)
        return plan.block_table[row].long()[(j // self.spec.block_size)] * self.spec.block_size + j % 16


@breaks("sizes")
class HeadsOfFullVectors(Plain):
    """Leaves out the channels behind the last whole vector of sixteen."""

    def attend(self, layer, query, keys, values, n):
        whole = query.shape[2] - query.shape[2] % 16 or query.shape[2]
        return super().attend(layer, query[:, :, :whole], keys[:, :, :whole], values, n)


@breaks("offsets")
class OffsetsOf32Bits(Plain):
    """Multiplies slot and row size in unsigned 32 bits."""

    def read(self, cache, layer, slots):
        each = cache.k.shape[-1] * self.spec.num_kv_heads
        return super().read(cache, layer, (slots * each % 2**32) // each)


@breaks("offsets")
class SignedOffsets(Plain):
    """Multiplies slot and row size in signed 32 bits, and takes the amount of what is negative."""

    def read(self, cache, layer, slots):
        each = cache.k.shape[-1] * self.spec.num_kv_heads
        return super().read(cache, layer, ((slots * each + 2**31) % 2**32 - 2**31).abs() // each)


@breaks("offsets")
class Writes32Bits(Plain):
    """Writes to slots whose offset was multiplied in 32 bits."""

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        each = kv_cache.k.shape[-1] * self.spec.num_kv_heads
        wrapped = torch.where(slot_mapping < 0, -1, (slot_mapping * each % 2**32) // each)
        super().write_kv(layer, key, value, kv_cache, wrapped)


def flat(x):
    """A view of the memory from the first number of `x` on, as if it were contiguous."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())
