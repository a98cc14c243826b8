"""Doubles of Dao-AILab's three libraries: flash_attn 2.8, FlashAttention 3 (hopper) and flash-attn-4.

Each has the recorded signature, raises where the library checks, answers from `attending` and returns what the library
returns in its own conventions: natural LSE (H, total_q); FlashAttention 2 gives +inf for a row without a key or with
NaN, the others -inf. Memory that nobody computes holds NaN, as memory from the allocator may.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .attending import attend, distances, require, require_int32, window
from .install import modules
from .signatures import standing_in

HALF = (torch.float16, torch.bfloat16)
FA3_RELEASES = ("flash-attn-3-main", "flash-attn-3-at-2.8.3")


def flash_attn_2(*, triton_amd: bool = False) -> dict[str, ModuleType]:
    """flash_attn 2.8.3.post2: the CUDA build, or the one whose kernels are Triton's for AMD."""
    varlen = standing_in(
        "flash_attn.flash_attn_varlen_func", ["flash-attn-2.8.3.post2"], _triton_amd if triton_amd else _fa2
    )
    found = modules("flash_attn.flash_attn_interface", USE_TRITON_ROCM=triton_amd, flash_attn_varlen_func=varlen)
    found["flash_attn"].flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    found["flash_attn"].__version__ = "2.8.3.post2"  # type: ignore[attr-defined]
    return found


def flash_attn_3(*releases: str) -> dict[str, ModuleType]:
    """FlashAttention 3, with the signatures of the first of these releases (`FA3_RELEASES`)."""
    releases = releases or FA3_RELEASES
    has_probs = releases[0] == "flash-attn-3-main"
    return modules(
        "flash_attn_interface",
        flash_attn_varlen_func=standing_in(
            "flash_attn_interface.flash_attn_varlen_func", releases[:1], _fa3_varlen if has_probs else _fa3_varlen_old
        ),
        flash_attn_with_kvcache=standing_in("flash_attn_interface.flash_attn_with_kvcache", releases, _fa3_paged),
    )


def flash_attn_4(arch: int = 90) -> dict[str, ModuleType]:
    """flash-attn-4 4.0.0b36 on a card of this architecture, whose module says version 0.0.0."""

    def call(**arguments: Any) -> Any:
        return _fa4(arch=arch, **arguments)

    varlen = standing_in("flash_attn.cute.flash_attn_varlen_func", ["flash-attn-4-4.0.0b36"], _named_as(_fa4, call))
    return modules("flash_attn.cute", __version__="0.0.0", flash_attn_varlen_func=varlen)


def _named_as(function: Any, call: Any) -> Any:
    call.__signature__ = inspect.signature(function)
    return call


def _fa2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    return_attn_probs: bool,
    block_table: Tensor | None,
) -> Any:
    batch = _check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)
    require(q.shape[-1] == v.shape[-1], "q, k and v must have one head dimension")
    require(q.shape[-1] <= 256, "FlashAttention forward only supports head dimension at most 256")
    require(q.shape[-1] % 8 == 0, "head_size must be a multiple of 8; pad the inputs")
    if block_table is not None:
        require_int32("block_table", block_table, (batch, block_table.shape[1]))
        require(k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    if alibi_slopes is not None:
        require(alibi_slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
        require(tuple(alibi_slopes.shape) == (q.shape[1],), "ALiBi slopes must be (nheads,)")
    left, right = window_size[0], 0 if causal else window_size[1]
    left = -1 if left >= max_seqlen_k else left
    out, lse = _outputs(q, v)
    lengths = cu_seqlens_k.diff()
    for rows, keys, values, _ in _sequences(q, k, v, cu_seqlens_q, lengths, block_table, cu_seqlens_k, max_seqlen_q):
        count, n = rows.stop - rows.start, len(keys)
        require(n <= max_seqlen_k, "max_seqlen_k is too small")
        bias = shift = None
        if alibi_slopes is not None:
            behind = distances(count, n)
            bias = -alibi_slopes.double()[:, None, None] * behind.abs()
            if causal and left < 0:  # the kernel adds slope·column: the same softmax, another sum
                shift = alibi_slopes.double() * torch.arange(n - count, n)[:, None]
        result, sums = attend(
            q[rows], keys, values, scale=softmax_scale or q.shape[-1] ** -0.5, seen=window(count, n, left, right),
            softcap=softcap, bias=bias,
        )  # fmt: skip
        out[rows], lse[rows] = (
            result.to(q.dtype),
            _strange(sums if shift is None else sums + shift, float("inf")).float(),
        )
    return (out, lse.T.contiguous(), None) if return_attn_probs else out


def _triton_amd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    return_attn_probs: bool,
    block_table: Tensor | None,
) -> Any:
    """Ignores window_size and softcap without a word; its LSE is (total_q, H), and 0 for a query without a key."""
    _check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)
    require(k.ndim == 3, "too many values to unpack (expected 3)")
    out, lse = _outputs(q, v)
    lengths = cu_seqlens_k.diff()
    for rows, keys, values, _ in _sequences(q, k, v, cu_seqlens_q, lengths, None, cu_seqlens_k, max_seqlen_q):
        count, n = rows.stop - rows.start, len(keys)
        result, sums = attend(
            q[rows], keys, values, scale=softmax_scale or q.shape[-1] ** -0.5,
            seen=window(count, n, -1, 0 if causal else -1),
        )  # fmt: skip
        out[rows], lse[rows] = result.to(q.dtype), sums.masked_fill(sums == float("-inf"), 0.0).float()
    return (out, lse, None) if return_attn_probs else out


def _fa3_varlen_old(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> Any:
    """As it was when flash_attn was at 2.8.3: always (out, LSE)."""
    _check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)
    lengths = cu_seqlens_k.diff()
    require(int(lengths.max()) <= max_seqlen_k, "max_seqlen_k is too small")
    scale = softmax_scale or q.shape[-1] ** -0.5
    return _fa3(q, k, v, cu_seqlens_q, lengths, None, cu_seqlens_k, max_seqlen_q, scale, causal, window_size, softcap)


def _fa3_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    return_attn_probs: bool,
) -> Any:
    found = _fa3_varlen_old(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, softcap
    )
    return found if return_attn_probs else found[0]


def _fa3_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    num_splits: int,
    return_softmax_lse: bool,
) -> Any:
    batch = len(cu_seqlens_q) - 1
    require(k_cache.stride(-1) == v_cache.stride(-1) == 1, "k_cache must have contiguous last dimension")
    require(num_splits <= 256, "num_splits must be at most 256")
    _check_halves(q, k_cache, v_cache)
    require_int32("cu_seqlens_q", cu_seqlens_q, (batch + 1,))
    require_int32("seqused_k", cache_seqlens, (batch,))
    require_int32("page_table", page_table, (batch, page_table.shape[1]))
    scale = softmax_scale or q.shape[-1] ** -0.5
    out, lse = _fa3(
        q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, None, max_seqlen_q, scale, causal, window_size,
        softcap,
    )  # fmt: skip
    return (out, lse, None, None) if return_softmax_lse else out


def _fa3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
    scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> tuple[Tensor, Tensor]:
    require(q.shape[-1] <= 256 and q.shape[-1] % 8 == 0, "head size must be a multiple of 8 up to 256")
    left, right = window_size[0], 0 if causal else window_size[1]
    out, lse = _outputs(q, v)
    for rows, keys, values, tail in _sequences(q, k, v, starts, lengths, table, key_starts, longest):
        count, n = rows.stop - rows.start, len(keys)
        result, sums = attend(
            q[rows], keys, values, scale=scale, seen=window(count, n, left, right), softcap=softcap
        )  # fmt: skip
        out[rows] = (result + _nothing_of(tail, q.shape[1])).to(q.dtype)
        lse[rows] = _strange(sums, float("-inf")).float()
    return out, lse.T.contiguous()


def _fa4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: Tensor | None,
    page_table: Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    learnable_sink: Tensor | None,
    softcap: float,
    num_splits: int,
    return_lse: bool,
    arch: int = 90,
) -> Any:
    batch = len(cu_seqlens_q) - 1
    require(arch // 10 in (8, 9, 10, 11, 12), "Unsupported compute capability")
    _check_halves(q, k, v)
    require_int32("cu_seqlens_q", cu_seqlens_q, (batch + 1,))
    if page_table is not None:
        require(arch // 10 not in (8, 12), f"paged KV not supported on SM {arch / 10}")
        require(cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k")
        require_int32("page_table", page_table, (batch, page_table.shape[1]))
        assert seqused_k is not None
        require_int32("seqused_k", seqused_k, (batch,))
        lengths = seqused_k
    else:
        assert cu_seqlens_k is not None
        require_int32("cu_seqlens_k", cu_seqlens_k, (batch + 1,))
        lengths = cu_seqlens_k.diff()
    sizes = (q.shape[-1], v.shape[-1])
    if arch // 10 == 9:
        require(all(8 <= size <= 256 and size % 8 == 0 for size in sizes), f"{sizes} is not supported on SM90")
        require(num_splits == 1, "SplitKV not supported on SM 9.0")
    else:
        usual = all(8 <= size <= 128 and size % 8 == 0 for size in sizes)
        require(usual or sizes in ((192, 128), (256, 256)), f"{sizes} is not supported on SM100")
    if learnable_sink is not None:
        require(tuple(learnable_sink.shape) == (q.shape[1],), "learnable_sink must be (num_heads,)")
    left, right = (-1 if side is None else side for side in window_size)
    require(None in window_size or min(left, right) >= 0, "a bound is None or a number of keys")
    out, lse = _outputs(q, v)
    for rows, keys, values, tail in _sequences(q, k, v, cu_seqlens_q, lengths, page_table, cu_seqlens_k, max_seqlen_q):
        count, n = rows.stop - rows.start, len(keys)
        require(n <= max_seqlen_k, "max_seqlen_k is too small")
        result, sums = attend(
            q[rows], keys, values, scale=softmax_scale or q.shape[-1] ** -0.5,
            seen=window(count, n, left, 0 if causal else right), softcap=softcap, sinks=learnable_sink,
        )  # fmt: skip
        out[rows] = (result + _nothing_of(tail, q.shape[1])).to(q.dtype)
        lse[rows] = _strange(sums, float("-inf")).float()
    return out, lse.T.contiguous() if return_lse else None


def _check_halves(q: Tensor, k: Tensor, v: Tensor) -> None:
    require(q.dtype in HALF, "FlashAttention only supports fp16 and bf16 data type")
    require(q.dtype == k.dtype == v.dtype, "query, key and value must have the same dtype")
    require(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    require(q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    require(q.shape[-1] == k.shape[-1], "query and key must have one head dimension")


def _check_varlen(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor) -> int:
    batch = len(starts) - 1
    require(batch > 0, "batch size must be positive")
    _check_halves(q, k, v)
    require_int32("cu_seqlens_q", starts, (batch + 1,))
    require_int32("cu_seqlens_k", key_starts, (batch + 1,))
    return batch


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised out (T, H, Dv) and LSE (T, H)."""
    shape = (*q.shape[:2], v.shape[-1])
    return torch.full(shape, float("nan"), dtype=q.dtype), torch.full(shape[:2], float("nan"))


def _sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """(query rows, K, V, V behind them in their page) of each sequence of up to `longest` queries, no others."""
    for row, (length, start, end) in enumerate(
        zip(lengths.tolist(), starts.tolist(), starts[1:].tolist(), strict=False)
    ):
        if end - start > longest:
            continue
        if table is None:
            assert key_starts is not None
            first = int(key_starts[row])
            yield slice(start, end), k[first : first + length], v[first : first + length], v[:0]
            continue
        pages = table[row, : -(-length // k.shape[1])].long()
        keys, values = k[pages].flatten(0, 1), v[pages].flatten(0, 1)
        yield slice(start, end), keys[:length], values[:length], values[length:]


def _nothing_of(tail: Tensor, heads: int) -> Tensor:
    """Zero times what lies behind the last key: a kernel that loads whole pages adds it, and NaN survives it."""
    return (0 * tail.double()).sum(0).repeat_interleave(heads // tail.shape[1], 0)


def _strange(sums: Tensor, mark: float) -> Tensor:
    """The kernels' LSE of rows whose sum is zero or NaN."""
    return torch.where(sums.isnan() | (sums == float("-inf")), mark, sums)
