"""AITER's functions for decodes over paged caches, as `doubles.aiter` puts them together.

Rows have one query. Kernels load blocks whole, write their scratch before they read it, and know no strides but those
of the query's rows and of the cache's blocks and heads: what they are given pointers to has to lie as they believe.
What the library checks raises; what it does not check is an assertion.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attending import attend, require, require_int32

HALF = (torch.float16, torch.bfloat16)
PARTITION = 256
UNITS = 3
"""Compute units of the card that is pretended: so few that both kernels of `common` have their turn."""


def v1(
    out: Tensor,
    workspace_buffer: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    scale: float,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    max_context_len: int,
    alibi_slopes: Tensor | None,
    kv_cache_dtype: str,
    kv_cache_layout: str,
    logits_soft_cap: float,
    k_scale: Tensor,
    v_scale: Tensor,
) -> Tensor:
    """`paged_attention_v1`, over planes (blocks, block, Hk, D)."""
    rows, heads, size = query.shape
    require(kv_cache_dtype == "auto", f"Unsupported data type of kv cache: {kv_cache_dtype}")
    require(kv_cache_layout == "NHD", f"Unsupported kv cache layout: {kv_cache_layout}")
    require(size in (64, 128), f"Unsupported head size: {size}")
    block, kv_heads = key_cache.shape[1:3]
    require(block in (1, 16, 32), f"Unsupported block size: {block}")
    require(heads % kv_heads == 0 and heads // kv_heads <= 16, f"Unsupported gqa ratio: {heads // kv_heads}")
    require_int32("context_lens", context_lens, (rows,))
    require_int32("cu_query_lens", cu_query_lens, (rows + 1,))
    require_int32("block_tables", block_tables, (rows, block_tables.shape[1]))
    require(k_scale.numel() == v_scale.numel() == 1, "one scale a tensor")
    partials = rows * heads * -(-max_context_len // PARTITION)
    require(workspace_buffer.numel() >= partials * (size * query.element_size() + 8), "the workspace is too small")
    _believed(query, out, key_cache, value_cache, block_tables)
    assert alibi_slopes is None or not logits_soft_cap, "it adds ALiBi before the softcap"
    workspace_buffer.fill_(255)
    _decode(
        query, key_cache, value_cache, block_tables, context_lens, max_context_len, out,
        scale=scale, softcap=logits_soft_cap, slopes=alibi_slopes,
    )  # fmt: skip
    return out


def rocm(
    out: Tensor,
    exp_sums: Tensor,
    max_logits: Tensor,
    tmp_out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    scale: float,
    block_tables: Tensor,
    context_lens: Tensor,
    block_size: int,
    max_context_len: int,
    alibi_slopes: Tensor | None,
    kv_cache_dtype: str,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> Tensor:
    """`paged_attention_rocm`, over packed planes; V of five dimensions is a shuffled one."""
    rows, heads, size = query.shape
    parts = -(-max_context_len // PARTITION)
    for name, scratch in (("tmp_out", tmp_out), ("exp_sums", exp_sums), ("max_logits", max_logits)):
        require(scratch.dim() >= 3, f"{name} must have shape [..., max_num_partitions, head_size]")
        require(scratch.size(2) >= parts, f"{name}.size(2)={scratch.size(2)} is too small")
    require(block_tables.dim() == 2, "block_tables must be 2D")
    width = block_tables.size(1)
    require(width * block_size >= max_context_len, f"block_tables.size(1)={width} is too small")
    require(context_lens.size(0) == rows == block_tables.size(0), "context_lens.size(0) must match block_tables")
    require(query.dtype in HALF and kv_cache_dtype == "auto" and key_cache.dtype == query.dtype, "Unsupported dtype")
    require(size in (64, 128), f"Unsupported head size: {size}")
    require(block_size in (16, 32), f"Unsupported block size: {block_size}")
    require(heads % num_kv_heads == 0 and heads // num_kv_heads <= 16, f"Unsupported gqa ratio: {heads / num_kv_heads}")
    require_int32("context_lens", context_lens, (rows,))
    require_int32("block_tables", block_tables, (rows, width))
    for scale_tensor in (k_scale, v_scale):
        require(scale_tensor is None or scale_tensor.numel() == 1, "one scale a tensor")
    _believed(query, out, key_cache, value_cache, block_tables)
    assert tuple(tmp_out.shape) == (rows, heads, parts, size), "partials are found by the number of partitions"
    assert exp_sums.shape == max_logits.shape == tmp_out.shape[:3]
    assert exp_sums.dtype == max_logits.dtype == torch.float32
    assert tmp_out.dtype == out.dtype
    for scratch in (exp_sums, max_logits, tmp_out):
        assert scratch.is_contiguous()
        scratch.fill_(float("nan"))
    assert alibi_slopes is None or (alibi_slopes.dtype == torch.float32 and len(alibi_slopes) == heads)
    _believed_packed(key_cache, value_cache, num_kv_heads, block_size, size)
    _decode(
        query, key_cache, value_cache, block_tables, context_lens, max_context_len, out,
        scale=scale, slopes=alibi_slopes,
    )  # fmt: skip
    return out


def common(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    exp_sums: Tensor,
    max_logits: Tensor,
    tmp_out: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    block_tables_stride0: int,
    scale: float,
    max_qlen: int,
    max_seq_len: int,
    K_QScale_hip: Tensor | None,
    V_QScale_hip: Tensor | None,
    out_: Tensor,
    kv_cache_dtype: str,
) -> Tensor:
    """`paged_attention_common`: the assembly kernel for heads of 128 where the card has plenty to do, else `rocm`."""
    rows, heads, size = Q.shape
    assert max_qlen == 1
    assert V.dim() == 5
    if size != 128 or rows * heads <= 2 * UNITS:
        return rocm(
            out_, exp_sums, max_logits, tmp_out, Q, K, V, K.size(1), scale, block_tables, context_lens, K.size(3),
            max_seq_len, None, kv_cache_dtype, K_QScale_hip, V_QScale_hip,
        )  # fmt: skip
    block, kv_heads = K.size(3), K.size(1)
    require(Q.dtype in HALF, f"unsupport Q dtype: {Q.dtype}")
    require(K.dtype == Q.dtype, "cannot get heuristic kernel! unsupport K dtype without scales a token")
    require(block == 16 and heads // kv_heads <= 16, f"cannot get heuristic kernel! gqa: {heads // kv_heads}")
    require_int32("context_lens", context_lens, (rows,))
    require_int32("block_tables", block_tables, (rows, block_tables.shape[1]))
    assert block_tables_stride0 == block_tables.stride(0)
    _believed(Q, out_, K, V, block_tables)
    _believed_packed(K, V, kv_heads, block, size)
    _decode(Q, K, V, block_tables, context_lens, max_seq_len, out_, scale=size**-0.5)
    return out_


def _believed(query: Tensor, out: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> None:
    """How what is given by pointer lies."""
    assert query.stride(1) == query.shape[2], "heads of a query lie together"
    assert out.is_contiguous()
    assert table.is_contiguous(), "the table's width is its stride"
    assert keys.is_contiguous()
    assert values.is_contiguous()


def _believed_packed(keys: Tensor, values: Tensor, kv_heads: int, block: int, size: int) -> None:
    """Packed planes: K (blocks, Hk, D/x, block, x), and V (blocks, Hk, D, block) or (blocks, Hk, block/x, D, x)."""
    x = 16 // keys.element_size()
    assert tuple(keys.shape[1:]) == (kv_heads, size // x, block, x)
    assert tuple(values.shape[1:]) in ((kv_heads, size, block), (kv_heads, block // x, size, x))


def _rows(plane: Tensor, pages: Tensor, heads_at: int, block: int) -> Tensor:
    """(tokens, Hk, D) of these pages: of planes (blocks, block, Hk, D), or packed in one of three ways."""
    taken = plane[pages]
    if heads_at == 2:
        return taken.flatten(0, 1)
    if taken.dim() == 4:
        return taken.permute(0, 3, 1, 2).flatten(0, 1)
    if taken.shape[3] == block:
        return taken.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)
    return taken.permute(0, 2, 4, 1, 3).flatten(0, 2)


def _decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    lengths: Tensor,
    longest: int,
    out: Tensor,
    **logits: Any,
) -> None:
    """Fill `out`. ALiBi is measured from the query, the last key."""
    slopes, packed = logits.pop("slopes", None), keys.dim() == 5
    heads_at, block = (1, keys.shape[3]) if packed else (2, keys.shape[1])
    group = query.shape[1] // keys.shape[heads_at]
    for row, length in enumerate(lengths.tolist()):
        require(length <= longest, "a row is longer than the longest")
        pages = tables[row, : -(-length // block)].long()
        k, v = (_rows(plane, pages, heads_at, block) for plane in (keys, values))
        bias = None
        if slopes is not None:
            bias = slopes.double()[:, None, None] * (torch.arange(length) - (length - 1))[None, None]
        result, _ = attend(
            query[row : row + 1], k[:length], v[:length],
            seen=torch.ones(1, length, dtype=torch.bool), bias=bias, **logits,
        )  # fmt: skip
        tail = (0 * v[length:].double()).sum(0).repeat_interleave(group, 0)
        out[row] = (result[0] + tail).to(out.dtype)
