"""A double of AITER (distribution ``amd-aiter``): the functions that the backends for ROCm call.

Each has the recorded signature, raises where the library checks, answers from `attending` and keeps the library's
conventions. `unified_attention` is causal, adds the current key to the window itself, ignores the window's right side,
measures ALiBi from the context's end, and reads 8-bit caches through one scale; a tile is a block where all rows are
decodes. What it does not check, but its kernels rely on, is an assertion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import aiter_paged
from .attending import attend, distances, require, require_int32, window
from .install import modules
from .signatures import standing_in

HALF = (torch.float16, torch.bfloat16)
OLD = ("aiter-0.1.7", "aiter-0.1.7.post2.dev18", "aiter-0.1.8", "aiter-0.1.9.post1")
"""Releases whose Triton functions lie right in ``aiter.ops.triton``."""
NEW = (
    "aiter-0.1.10.post3", "aiter-0.1.11", "aiter-0.1.12.post2", "aiter-0.1.14", "aiter-0.1.16", "aiter-0.1.18",
    "aiter-0.1.20.post1", "aiter-main-2026-08-22",
)  # fmt: skip


def aiter(releases: Sequence[str] = NEW) -> dict[str, ModuleType]:
    """AITER as these releases have it, which lie in the same modules."""
    home = (
        "aiter.ops.triton.unified_attention" if releases[0] in OLD else "aiter.ops.triton.attention.unified_attention"
    )
    found = modules(home, unified_attention=standing_in(f"{home}.unified_attention", releases, unified))
    ops = found["aiter.ops"]
    functions: dict[str, dict[str, Callable[..., Any]]] = {
        "mha": {"flash_attn_varlen_func": varlen_of_old if releases[0] in OLD else varlen},
        "attention": {"paged_attention_v1": aiter_paged.v1, "paged_attention_rocm": aiter_paged.rocm},
    }
    if releases[0] not in OLD:
        functions["attention"]["paged_attention_common"] = aiter_paged.common
    for module, named in functions.items():
        path = f"aiter.ops.{module}"
        found[path] = ModuleType(path)
        for function, does in named.items():
            setattr(found[path], function, standing_in(f"{path}.{function}", releases, does))
        setattr(ops, module, found[path])
    return found


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    logits_soft_cap: float,
    causal: bool,
    window_size: tuple[int, ...],
    alibi_slopes: Tensor | None,
    return_lse: bool,
    out: Tensor | None,
    block_table: Tensor | None = None,
) -> Any:
    """Flash attention over ragged K and V, or paged ones: LSE natural, float32 (H, total_q), -inf where a query sees
    no key. ALiBi is -slope·|i-j| from the end of what is given; causal without a window it is slope·j, which shifts
    the LSE.
    """
    batch = len(cu_seqlens_q) - 1
    require(q.dtype in HALF and q.dtype == k.dtype == v.dtype, "FlashAttention only supports fp16 and bf16 data type")
    require(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    require(q.shape[-1] <= 256 and q.shape[-1] % 8 == 0, "head dimension at most 256, a multiple of 8")
    require(q.shape[1] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    require(q.shape[-1] == k.shape[-1], "query and key must have one head dimension")
    require_int32("cu_seqlens_q", cu_seqlens_q, (batch + 1,))
    require_int32("cu_seqlens_k", cu_seqlens_k, (batch + 1,))
    require(len(window_size) == 2 or window_size[2] == 0, "a window has two sides, and may name sinks, which are none")
    if block_table is not None:
        require(k.shape[1] % 128 == 0, "Paged KV cache block size must be divisible by 128")
        require_int32("block_table", block_table, (batch, block_table.shape[1]))
    if out is None:
        out = torch.full_like(q, float("nan"))
    require(out.dtype == q.dtype and out.shape == q.shape and out.stride(-1) == 1, "Output must be like the query")
    if alibi_slopes is not None:
        require(alibi_slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
        require(alibi_slopes.stride(-1) == 1 and alibi_slopes.shape == (q.shape[1],), "ALiBi slopes are one a head")
        assert not logits_soft_cap, "which of the two comes first was not read"
    lse = torch.full(q.shape[:2], float("nan"))
    ranges = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for row, ((start, end), (first, last)) in enumerate(ranges):
        require(end - start <= max_seqlen_q and last - first <= max_seqlen_k, "a row is longer than the longest")
        keys, values = k[first:last], v[first:last]
        if block_table is not None:
            keys, values = (x[block_table[row].long()].flatten(0, 1)[: last - first] for x in (k, v))
        result, sums = attend(
            q[start:end], keys, values, scale=softmax_scale or q.shape[-1] ** -0.5,
            seen=window(end - start, last - first, window_size[0], 0 if causal else window_size[1]),
            softcap=logits_soft_cap, bias=_bias(alibi_slopes, end - start, last - first, causal and window_size[0] < 0),
        )  # fmt: skip
        lse[start:end] = sums.float()
        if last > first:  # what a row without keys gets nobody promises
            out[start:end] = result.to(q.dtype)
    return (out, lse.T.contiguous()) if return_lse else out


@functools.wraps(varlen)
def varlen_of_old(**arguments: Any) -> Any:
    """The same before ROCm/aiter#1519: the assembly kernel for heads of 128 in bfloat16 knows no softcap, and gets
    layers that have one."""
    q, left = arguments["q"], arguments["window_size"][0]
    if q.dtype == torch.bfloat16 and q.shape[-1] == 128 and not 0 < left < arguments["max_seqlen_k"]:
        arguments["logits_soft_cap"] = 0.0
    return varlen(**arguments)


def _bias(slopes: Tensor | None, queries: int, keys: int, vertical: bool) -> Tensor | None:
    """float64 (H, queries, keys)."""
    if slopes is None:
        return None
    distance = -torch.arange(keys).double().expand(queries, keys) if vertical else distances(queries, keys).abs()
    return -slopes.double()[:, None, None] * distance


def unified(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    seqused_k: Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: Tensor,
    softcap: float,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    require(causal, "Only causal attention is supported")
    require(q_descale is None, "Q scales not supported")
    require(sinks is None or sinks.shape[0] == q.shape[1], "Sinks must be num_query_heads size")
    _check_unified(q, k, v, out, block_table, cu_seqlens_q, seqused_k)
    block = v.shape[1]
    require(max_seqlen_q > 1 or block & (block - 1) == 0, f"arange's range must be a power of 2, not {block}")
    for row, (start, end) in enumerate(pairwise(cu_seqlens_q.tolist())):
        count, length = end - start, int(seqused_k[row])
        if count == 0:
            continue  # a program that finds no query of its row leaves
        assert count <= max_seqlen_q
        assert 0 < length <= max_seqlen_k, "rows have keys, and no more than the longest"
        pages = block_table[row, : -(-length // block)].long()
        keys, values = (_stored(x, pages, s) for x, s in ((k, k_descale), (v, v_descale)))
        bias = None
        if alibi_slopes is not None:
            bias = alibi_slopes.double()[:, None, None] * (torch.arange(length) - (length - count))[None, None]
        result, _ = attend(
            q[start:end], keys[:length], values[:length], scale=softmax_scale,
            seen=window(count, length, window_size[0], 0), softcap=softcap, bias=bias, sinks=sinks,
        )  # fmt: skip
        if sinks is None:  # a query without a key is divided by a sum of 0
            result[: max(0, count - length)] = float("nan")
        tail = (0 * values[length:]).sum(0).repeat_interleave(q.shape[1] // k.shape[2], 0)
        out[start:end] = (result + tail).to(out.dtype)
    return out


def _check_unified(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, table: Tensor, starts: Tensor, lengths: Tensor
) -> None:
    """What the kernel takes for granted: it is given pointers and strides."""
    assert q.dtype in HALF
    assert q.dtype == out.dtype
    assert k.dtype == q.dtype or k.element_size() == 1
    assert q.shape == out.shape
    assert q.shape[2] == k.shape[3] == v.shape[3], "nhd planes, heads of K and V alike"
    assert q.stride(2) == out.stride(2) == 1
    assert table.dtype in (torch.int32, torch.int64)
    assert table.shape[1] == 1 or table.stride(1) == 1
    assert starts.dtype == lengths.dtype == torch.int32
    assert len(starts) == len(lengths) + 1 <= len(table) + 1


def _stored(plane: Tensor, pages: Tensor, scale: Tensor | None) -> Tensor:
    """float64 (tokens, H, D) of these pages, with the one scale of the tensor."""
    rows = plane.view(torch.uint8)[pages].view(plane.dtype) if plane.element_size() == 1 else plane[pages]
    if plane.element_size() == 1:
        require(scale is not None and scale.numel() == 1, "an 8-bit cache is read through one scale")
        assert scale is not None
        return rows.flatten(0, 1).double() * scale.double()
    return rows.flatten(0, 1).double()
