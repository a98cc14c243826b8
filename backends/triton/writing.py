"""The kernel that writes a step's K and V into the cache, quantised where the format is scaled."""

from __future__ import annotations

import triton
import triton.language as tl

from .kernels import channels_at, rounded

INTEGERS = tl.constexpr(12582912.0)
"""1.5 · 2^23: float32 has no fractions there, so adding and subtracting it rounds to an integer, ties to even."""


@triton.jit
def quantised(
    x, dtype: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, MANTISSA: tl.constexpr, LEAST: tl.constexpr,
    BY_HAND: tl.constexpr,
):  # fmt: skip
    """float32 `x` in an 8-bit `dtype`, saturated.

    By hand, for the interpreter, which rounds ties away from zero and loses the carry into the exponent: to MANTISSA
    bits, ties to even, in steps of at least LEAST, the smallest number; the conversion is exact then.
    """
    x = tl.where(x == x, tl.minimum(tl.maximum(x, LOWEST), LARGEST), x)
    if dtype == tl.int8:
        x = (x + INTEGERS) - INTEGERS
    elif BY_HAND:
        power = ((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - MANTISSA
        step = tl.maximum((tl.maximum(power, 1) << 23).to(tl.float32, bitcast=True), LEAST)
        x = ((x / step + INTEGERS) - INTEGERS) * step
    return x.to(dtype)


@triton.jit
def copy_rows(
    source, plane, scale, source_token, source_head, plane_block, plane_slot, plane_head,
    token, slot, channel, HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, PACK: tl.constexpr,
    SCALES_PER_HEAD: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, MANTISSA: tl.constexpr,
    LEAST: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    """Rows `token` of K or of V, of all heads' channels the `channel`s, to `slot`; -1 is nowhere."""
    head = channel // HEAD_SIZE
    d = channel % HEAD_SIZE
    there = (slot >= 0)[:, None] & (channel < HEADS * HEAD_SIZE)[None, :]
    x = tl.load(source + (token * source_token)[:, None] + (head * source_head + d)[None, :], mask=there, other=0.0)
    at = slot // BLOCK_SIZE * plane_block + slot % BLOCK_SIZE * plane_slot
    target = plane + at[:, None] + (head.to(tl.int64) * plane_head + channels_at(d, BLOCK_SIZE, PACK))[None, :]
    if plane.dtype.element_ty.primitive_bitwidth == 8:
        x = x.to(tl.float32)
        if scale is not None:
            by = tl.load(scale + head * SCALES_PER_HEAD, mask=channel < HEADS * HEAD_SIZE, other=1.0)
            x = tl.div_rn(x, tl.broadcast_to(by[None, :], x.shape))
        y = quantised(x, plane.dtype.element_ty, LOWEST, LARGEST, MANTISSA, LEAST, BY_HAND)
    elif plane.dtype.element_ty == x.dtype:
        y = x
    else:
        y = rounded(x.to(tl.float32), plane.dtype.element_ty, BY_HAND)
    tl.store(target, y, mask=there)


@triton.jit(do_not_specialize=["num_tokens"])
def write_kernel(
    key, value, key_plane, value_plane, slots, key_scale, value_scale,
    key_token, key_head, value_token, value_head,
    k_block, k_slot, k_head, v_block, v_slot, v_head, num_tokens,
    HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_SIZE_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_PACK: tl.constexpr, VALUE_PACK: tl.constexpr,
    SCALES_PER_HEAD: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, MANTISSA: tl.constexpr,
    LEAST: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of TOKENS tokens, tiles of CHANNELS of all heads' channels."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1)
    copy_rows(
        key, key_plane, key_scale, key_token, key_head, k_block, k_slot, k_head, token, slot, channel,
        HEADS, HEAD_SIZE, BLOCK_SIZE, KEY_PACK, SCALES_PER_HEAD, LOWEST, LARGEST, MANTISSA, LEAST, BY_HAND,
    )  # fmt: skip
    copy_rows(
        value, value_plane, value_scale, value_token, value_head, v_block, v_slot, v_head, token, slot, channel,
        HEADS, HEAD_SIZE_V, BLOCK_SIZE, VALUE_PACK, SCALES_PER_HEAD, LOWEST, LARGEST, MANTISSA, LEAST, BY_HAND,
    )  # fmt: skip
