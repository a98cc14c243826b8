"""AITER's paged attention for decodes (HIP): where it can, what scratch it needs, and its call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.attention import AttentionBatch, AttentionSpec, Device, KVCache, Limits, Workspace
from .._aiter_ops import AiterOptions, bind

OP = "paged_attention"
PARTITION = 256
"""Keys that a program takes."""
HEAD_SIZES, BLOCK_SIZES, MOST_HEADS = (64, 128), (16, 32), 16
"""What it is compiled for; query heads a KV head."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decodes:
    """Rows of one query: the first of a step."""

    starts: Tensor
    """int32 (R+1,)."""
    lengths: Tensor
    """int32 (R,)."""
    table: Tensor
    """int32 (R, width)."""
    rows: int
    longest: int
    """Keys of the longest row at most; in a graph, of the longest that may come."""


def decodes(batch: AttentionBatch, rows: int, limits: Limits) -> Decodes:
    """The first `rows` rows of a step over a paged cache."""
    assert batch.block_table is not None
    return Decodes(
        starts=batch.query_start_loc[: rows + 1],
        lengths=batch.seq_lens[:rows],
        table=batch.block_table[:rows],
        rows=rows,
        longest=max(batch.max_seq_len, 1) if batch.graph is None else limits.max_model_len,
    )


def suits(spec: AttentionSpec) -> bool:
    """Whether the kernel computes decodes of such a layer."""
    return (
        spec.window is None
        and not (spec.sinks or spec.alibi or spec.lse or spec.masks or spec.batch_invariant)
        and spec.causal
        and (spec.kind, spec.kv_source) == ("decoder", "cache")
        and spec.head_size == spec.head_size_v
        and spec.head_size in HEAD_SIZES
        and spec.block_size in BLOCK_SIZES
        and spec.group_size <= MOST_HEADS
    )


class PagedDecode:
    """The kernel for one instance's layers. Its scratch is reserved at once: a captured graph keeps the address."""

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: AiterOptions
    ) -> None:
        self._function = bind(OP, options)
        self._spec, self._workspace = spec, workspace
        self._one = torch.ones(1, dtype=torch.float32, device=device.torch_device)
        workspace.get(self._scratch_bytes(limits.max_num_reqs, limits.max_model_len))

    def _scratch_bytes(self, rows: int, longest: int) -> int:
        """Partial outputs in the query's dtype, and sums and maxima in float32, of each partition."""
        partials = rows * self._spec.num_heads * -(-longest // PARTITION)
        return partials * (self._spec.head_size * 2 + 2 * 4)

    def attend(self, query: Tensor, cache: KVCache, rows: Decodes, out: Tensor) -> None:
        """Fill `out` (R, Hq, D) for `query` (R, Hq, D), over an ``nhd`` cache.

        The kernel is told of strides between the query's tokens and of those of the cache; all else has to be dense.
        """
        if query.stride()[1:] != (self._spec.head_size, 1):
            query = query.contiguous()
        result = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        self._function(
            out=result,
            workspace_buffer=self._workspace.get(self._scratch_bytes(rows.rows, rows.longest)),
            query=query,
            key_cache=cache.k,
            value_cache=cache.v,
            scale=self._spec.scale,
            block_tables=rows.table.contiguous(),
            cu_query_lens=rows.starts,
            context_lens=rows.lengths,
            max_context_len=rows.longest,
            alibi_slopes=None,
            kv_cache_dtype="auto",
            kv_cache_layout="NHD",
            logits_soft_cap=self._spec.softcap or 0.0,
            k_scale=self._one,
            v_scale=self._one,
        )
        if result is not out:
            out.copy_(result)
