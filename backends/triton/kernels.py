"""The kernel that attends, and the one that merges what splits of the keys gave.

A program takes a tile of query tokens of one row, together with all query heads of one KV head, over a range of the
row's keys: so K and V are read once a KV head, in prompts as in decodes. The online softmax is FlashAttention's (Dao et
al., arXiv 2205.14135), split keys are Flash-Decoding's; rows are found by binary search, an idea of vLLM's kernels.

Where `BY_HAND` is set, bfloat16 is rounded here and never computed with: Triton's interpreter keeps it as 16-bit
integers, on whose bits it would compute, and cuts it off instead of rounding it.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def rounded(x, dtype: tl.constexpr, BY_HAND: tl.constexpr):
    """float32 `x` in `dtype`; by hand to bfloat16's nearest, ties to even."""
    if BY_HAND and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = bits + 0x7FFF + ((bits >> 16) & 1)
        half = tl.where(x == x, nearest >> 16, 0x7FC0).to(tl.uint16)
        return half.to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def tanh(x):
    """tanh in float32, with a small relative error near 0 as well: a Padé approximant there, e^-2|x| elsewhere."""
    square = x * x
    near = x * (945 + square * (105 + square)) / (945 + square * (420 + 15 * square))
    t = tl.exp2(tl.abs(x) * (-2 * LOG2E))
    far = (1 - t) / (1 + t)
    return tl.where(tl.abs(x) < 0.5, near, tl.where(x < 0, -far, far))


@triton.jit
def row_of(tile, query_start, first_row, num_rows, TOKENS: tl.constexpr, TILE_IS_ROW: tl.constexpr):
    """Row that a tile belongs to, and the first of its tokens that the tile takes. A row of q tokens has room for
    ceil(q / TOKENS) tiles, and at times for one more that is left empty."""
    row = first_row + tile
    before = tile
    if not TILE_IS_ROW:
        base = tl.load(query_start + first_row)
        low = 0
        high = num_rows
        while low < high:
            middle = (low + high) // 2
            begin = (tl.load(query_start + first_row + middle) - base) // TOKENS + middle
            if begin <= tile:
                low = middle + 1
            else:
                high = middle
        row = first_row + low - 1
        before = (tl.load(query_start + row) - base) // TOKENS + low - 1
    return row, (tile - before) * TOKENS


@triton.jit
def tile_rows(first, queries, kv_head, part, GROUP: tl.constexpr, ROWS: tl.constexpr, SHARE: tl.constexpr):
    """Token and query head of each row of a tile, and whether there is such a one: heads of a token lie together."""
    m = tl.arange(0, ROWS)
    token = first + m // SHARE
    shared = part * SHARE + m % SHARE
    live = (m < ROWS // SHARE * SHARE) & (token < queries) & (shared < GROUP)
    return token, kv_head * GROUP + shared, live


@triton.jit
def key_range(
    position, end, length, split, num_splits, LEFT: tl.constexpr, RIGHT: tl.constexpr, SPLIT: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Keys that some query of a tile sees, whose positions are `position` up to `end`; of those, a split's."""
    low = 0
    high = length
    if LEFT >= 0:
        low = tl.maximum(low, position - LEFT)
    if RIGHT >= 0:
        high = tl.minimum(high, end + RIGHT)
    if SPLIT:
        share = tl.cdiv(tl.cdiv(tl.maximum(high - low, 0), num_splits), KEYS) * KEYS
        low = low + split * share
        high = tl.minimum(high, low + share)
    return low, high


@triton.jit
def places_of(j, there, row, table, table_row, key_start, BLOCK_SIZE: tl.constexpr):
    """Block and offset of keys `j` of a row; of ragged ones, block 0 and the row among all keys."""
    if BLOCK_SIZE > 0:
        block = tl.load(table + row.to(tl.int64) * table_row + j // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        offset = (j % BLOCK_SIZE).to(tl.int64)
    else:
        offset = (tl.load(key_start + row) + j).to(tl.int64)
        block = offset * 0
    return block, offset


@triton.jit
def channels_at(d, BLOCK_SIZE: tl.constexpr, PACK: tl.constexpr):
    """Where channels `d` of a token lie from its first one: one after the other, or, with a PACK, so many together, and
    the next ones a block's tokens further on."""
    if PACK > 0:
        return d // PACK * (BLOCK_SIZE * PACK) + d % PACK
    return d


@triton.jit
def logits_of(
    q, k, position, j, see, scale, softcap, slope,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits in base 2, -inf where a query does not see a key. The order is scale, softcap, ALiBi, mask."""
    s = tl.dot(q, k, input_precision=PRECISION) * scale
    if SOFTCAP:
        s = softcap * tanh(s / softcap)
    if ALIBI:
        s -= slope[:, None] * tl.abs(position[:, None] - j[None, :]).to(tl.float32)
    if LEFT >= 0:
        see = see & (j[None, :] >= position[:, None] - LEFT)
    if RIGHT >= 0:
        see = see & (j[None, :] <= position[:, None] + RIGHT)
    return tl.where(see, s * LOG2E, float("-inf"))


@triton.jit
def weights_of(s, top, total):
    """One step of the online softmax: weights of logits `s`, how far older sums fade, and the new maximum and sum."""
    higher = tl.maximum(top, tl.max(s, 1))
    pivot = tl.where(higher == float("-inf"), 0.0, higher)
    p = tl.exp2(s - pivot[:, None])
    fade = tl.exp2(top - pivot)
    return p, fade, higher, total * fade + tl.sum(p, 1)


@triton.jit
def level_of(top, total):
    """Log-sum-exp in base 2; -inf where nothing was summed. And the sum, 1 in that case."""
    seen = total != 0.0
    total = tl.where(seen, total, 1.0)
    return tl.where(seen, top + tl.log2(total), float("-inf")), total


@triton.jit(do_not_specialize=["first_row", "num_rows", "num_splits"])
def attend_kernel(
    out, lse, partial, partial_lse, query, key, value,
    table, query_start, key_start, seq_lens, key_scale, value_scale, sinks, slopes,
    scale, softcap,
    query_token, query_head, out_token, out_head, lse_token, lse_head,
    key_block, key_token, key_head, value_block, value_token, value_head, table_row,
    first_row, num_rows, num_splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_SIZE_V: tl.constexpr,
    HEAD_PAD: tl.constexpr, HEAD_PAD_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    KEY_PACK: tl.constexpr, VALUE_PACK: tl.constexpr,
    SCALES_PER_HEAD: tl.constexpr, SPLIT: tl.constexpr, TILE_IS_ROW: tl.constexpr,
    ROWS: tl.constexpr, SHARE: tl.constexpr, KEYS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    """Grid: tiles, KV heads times parts of their group, splits. BLOCK_SIZE 0 is ragged K and V; LEFT and RIGHT are
    keys seen around a query's own, -1 for all; SHARE heads of a group share a tile; packs are `channels_at`'s. Pointers
    may be None."""
    TOKENS: tl.constexpr = ROWS // SHARE
    PARTS: tl.constexpr = (GROUP + SHARE - 1) // SHARE
    kv_head = tl.program_id(1) // PARTS
    row, first = row_of(tl.program_id(0), query_start, first_row, num_rows, TOKENS, TILE_IS_ROW)
    begin = tl.load(query_start + row)
    queries = tl.load(query_start + row + 1) - begin
    length = tl.load(seq_lens + row)
    if first >= queries:
        return

    d, dv = tl.arange(0, HEAD_PAD), tl.arange(0, HEAD_PAD_V)
    token, head, live = tile_rows(first, queries, kv_head, tl.program_id(1) % PARTS, GROUP, ROWS, SHARE)
    position = length - queries + token
    row_token = (begin + token).to(tl.int64)
    q_at = (row_token * query_token + head * query_head)[:, None] + d[None, :]
    q = tl.load(query + q_at, mask=live[:, None] & (d < HEAD_SIZE)[None, :], other=0.0).to(DOT)
    end = length - queries + tl.minimum(first + TOKENS, queries)
    low, high = key_range(length - queries + first, end, length, tl.program_id(2), num_splits, LEFT, RIGHT, SPLIT, KEYS)
    total, slope = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    top, acc = total - float("inf"), tl.zeros([ROWS, HEAD_PAD_V], tl.float32)
    if sinks is not None and not SPLIT:
        top = tl.load(sinks + head, mask=live, other=0.0) * LOG2E
        total += 1.0
    if ALIBI:
        slope = tl.load(slopes + head, mask=live, other=0.0)
    if key_scale is not None:
        scale *= tl.load(key_scale + kv_head * SCALES_PER_HEAD)
    key, value = key + kv_head.to(tl.int64) * key_head, value + kv_head.to(tl.int64) * value_head
    for start in range(low, high, KEYS):
        j = start + tl.arange(0, KEYS)
        there = j < high
        block, offset = places_of(j, there, row, table, table_row, key_start, BLOCK_SIZE)
        k_at = (block * key_block + offset * key_token)[None, :] + channels_at(d, BLOCK_SIZE, KEY_PACK)[:, None]
        k = tl.load(key + k_at, mask=there[None, :] & (d < HEAD_SIZE)[:, None], other=0.0).to(DOT)
        see = live[:, None] & there[None, :]
        s = logits_of(q, k, position, j, see, scale, softcap, slope, LEFT, RIGHT, SOFTCAP, ALIBI, PRECISION)
        p, fade, top, total = weights_of(s, top, total)
        v_at = (block * value_block + offset * value_token)[:, None] + channels_at(dv, BLOCK_SIZE, VALUE_PACK)[None, :]
        v = tl.load(value + v_at, mask=there[:, None] & (dv < HEAD_SIZE_V)[None, :], other=0.0).to(DOT)
        acc = acc * fade[:, None] + tl.dot(p.to(DOT), v, input_precision=PRECISION)  # pyright: ignore[reportArgumentType]

    level, total = level_of(top, total)
    acc = acc / total[:, None]
    if value_scale is not None:
        acc *= tl.load(value_scale + kv_head * SCALES_PER_HEAD)
    keep = live[:, None] & (dv < HEAD_SIZE_V)[None, :]
    if SPLIT:
        part = (row_token * HEADS + head) * num_splits + tl.program_id(2)
        tl.store(partial + (part * HEAD_SIZE_V)[:, None] + dv[None, :], acc, mask=keep)
        tl.store(partial_lse + part, level, mask=live)
    else:
        out += (row_token * out_token + head * out_head)[:, None] + dv[None, :]
        tl.store(out, rounded(acc, out.dtype.element_ty, BY_HAND), mask=keep)
        if lse is not None:
            tl.store(lse + row_token * lse_token + head * lse_head, level * LN2, mask=live)


@triton.jit(do_not_specialize=["first_token", "last_row", "num_splits"])
def merge_kernel(
    out, lse, partial, partial_lse, query_start, sinks,
    out_token, out_head, lse_token, lse_head, first_token, last_row, num_splits,
    HEADS: tl.constexpr, HEAD_SIZE_V: tl.constexpr, HEAD_PAD_V: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    """Grid: tokens, query heads. Splits come one after the other, so their number changes no order of sums. Sinks enter
    here and in no split. `last_row` is the number of rows: tokens behind the last row's are left alone."""
    token = (first_token + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(query_start + last_row):
        return
    dv = tl.arange(0, HEAD_PAD_V)
    inside = dv < HEAD_SIZE_V
    top = float("-inf")
    total = 0.0
    if sinks is not None:
        top = tl.load(sinks + head) * LOG2E
        total = 1.0
    acc = tl.zeros([HEAD_PAD_V], tl.float32)
    first = (token * HEADS + head) * num_splits
    for split in range(num_splits):
        level = tl.load(partial_lse + first + split)
        # A split without a key has written nothing.
        filled = tl.where(level == float("-inf"), 0, HEAD_SIZE_V)
        higher = tl.maximum(top, level)
        pivot = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(top - pivot)
        weight = tl.exp2(level - pivot)
        total = total * fade + weight
        part = tl.load(partial + (first + split) * HEAD_SIZE_V + dv, mask=dv < filled, other=0.0)
        acc = acc * fade + part * weight
        top = higher
    level, total = level_of(top, total)
    acc = acc / total
    target = out + token * out_token + head * out_head + dv
    tl.store(target, rounded(acc, out.dtype.element_ty, BY_HAND), mask=inside)
    if lse is not None:
        tl.store(lse + token * lse_token + head * lse_head, level * LN2)
