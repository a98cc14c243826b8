"""Decodes by AITER's paged kernels, one for each layout of the cache: parts of the backends here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Limits,
    Mismatch,
    Sizes,
    Workspace,
    mismatches,
    one_of,
)
from .._aiter_ops import AiterOptions, bind, unsupported
from ..libraries import stored_as_computed

PARTITION = 256
"""Keys that a program takes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decodes:
    """Rows of one query each."""

    starts: Tensor
    """int32 (R+1,)."""
    lengths: Tensor
    """int32 (R,)."""
    table: Tensor
    """int32 (R, width), one row behind the other: the kernels are given a pointer and a width."""
    rows: int
    longest: int
    """Keys of the longest row at most; in a graph, of the longest that may come."""


class PagedDecode(AttentionBackend[Decodes]):
    """Rows of one query over a paged cache, whose keys are split in partitions of 256 and merged.

    What the kernels have in common: CDNA 3 and 4, K and V stored as they are computed with (those that read 8-bit
    caches round the query and the weights to 8 bits as well), no window, no sinks, no LSE. Their scratch is reserved at
    once: a captured graph keeps the address. Blocks are loaded whole, so what lies behind a row's last key has to be
    finite.
    """

    Options = AiterOptions
    op: ClassVar[str]
    own: ClassVar[Mapping[str, Any]]
    """What a kernel offers otherwise than these, by the field of `Capabilities`."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if unsupported(device, cls.op):
            return Capabilities()
        common = Capabilities(
            dtypes=frozenset({"bfloat16", "float16"}),
            kv_formats=frozenset({"bf16", "fp16"}),
            head_sizes=one_of(64, 128),
            group_sizes=Sizes(high=16),
            block_sizes=one_of(16, 32),
            kinds=frozenset({"decoder"}),
            kv_sources=frozenset({"cache"}),
            causal=frozenset({True}),
            any_scale=True,
            alibi=True,
            graph=GraphSupport.SINGLE_TOKEN,
            padded_seq_len=1,
            needs_zeroed_cache=True,
            max_cache_elements=2**62,
        )
        return replace(common, **cls.own)

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return stored_as_computed(spec)

    @classmethod
    def suits(cls, spec: AttentionSpec, device: Device) -> bool:
        """Whether it computes decodes of such a layer."""
        return not (mismatches(spec, cls.capabilities(device)) or cls.refusals(spec, device))

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._function = bind(self.op, self.options)
        self._one = torch.ones(1, dtype=torch.float32, device=device.torch_device)
        workspace.get(self._scratch_bytes(limits.max_num_reqs, limits.max_model_len))

    def _scratch_bytes(self, rows: int, longest: int) -> int:
        """Partial outputs in the query's dtype, sums and maxima in float32 of each partition; and an output."""
        heads, size = rows * self.spec.num_heads, self.spec.head_size * 2
        return heads * (-(-longest // PARTITION) * (size + 2 * 4) + size)

    def plan(self, batch: AttentionBatch) -> Decodes:
        assert batch.block_table is not None
        rows = batch.num_reqs if batch.graph is None else len(batch.seq_lens)
        table = batch.block_table[:rows]
        longest = max(batch.max_seq_len, 1) if batch.graph is None else self.limits.max_model_len
        return Decodes(
            starts=batch.query_start_loc[: rows + 1],
            lengths=batch.seq_lens[:rows],
            table=table.contiguous(),
            rows=rows,
            longest=min(longest, table.shape[1] * self.spec.block_size),
        )

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: Decodes,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        if kv_cache is None:
            raise ValueError("it attends over a paged cache, and none was given")
        if len(out) > plan.rows:
            out[plan.rows :].zero_()
        query, target = query[: plan.rows], out[: plan.rows]
        # The kernels are told of one stride of the query, that of a row, and of none of the output.
        if query.stride()[1:] != (self.spec.head_size, 1):
            query = query.contiguous()
        whole = target.is_contiguous()
        scratch = self.workspace.get(self._scratch_bytes(plan.rows, plan.longest))
        room = target.numel() * target.element_size()
        result = target if whole else scratch[len(scratch) - room :].view(target.dtype).view(target.shape)
        self._attend(layer, query, kv_cache, plan, result, scratch[: len(scratch) - room])
        if not whole:
            target.copy_(result)

    @abstractmethod
    def _attend(
        self, layer: LayerParams, query: Tensor, cache: KVCache, rows: Decodes, out: Tensor, scratch: Tensor
    ) -> None:
        """Fill `out` (R, Hq, D), which is contiguous."""

    def _parted(self, rows: Decodes, scratch: Tensor) -> dict[str, Tensor]:
        """The scratch of kernels that take it in parts: for each partition of each row and head."""
        shape = (rows.rows, self.spec.num_heads, -(-rows.longest // PARTITION))
        sums = shape[0] * shape[1] * shape[2] * 4
        partial = scratch[2 * sums :].view(getattr(torch, self.spec.dtype))
        return {
            "exp_sums": scratch[:sums].view(torch.float32).view(shape),
            "max_logits": scratch[sums : 2 * sums].view(torch.float32).view(shape),
            "tmp_out": partial.view(*shape, self.spec.head_size),
        }


class PagedAttention(PagedDecode):
    """Over ``nhd`` blocks. Its ALiBi comes before the softcap, so the two together are refused."""

    op = "paged_attention"
    own = MappingProxyType({"softcap": True, "layouts": ("nhd",)})

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return super().refusals(spec, device) + capped_alibi(spec)

    def _attend(
        self, layer: LayerParams, query: Tensor, cache: KVCache, rows: Decodes, out: Tensor, scratch: Tensor
    ) -> None:
        self._function(
            out=out,
            workspace_buffer=scratch,
            query=query,
            key_cache=cache.k,
            value_cache=cache.v,
            scale=self.spec.scale,
            block_tables=rows.table,
            cu_query_lens=rows.starts,
            context_lens=rows.lengths,
            max_context_len=rows.longest,
            alibi_slopes=layer.alibi_slopes,
            kv_cache_dtype="auto",
            kv_cache_layout="NHD",
            logits_soft_cap=self.spec.softcap or 0.0,
            k_scale=self._one,
            v_scale=self._one,
        )


class PackedDecode(PagedDecode):
    """Over ``x_packed`` blocks."""

    op = "paged_attention_rocm"
    own = MappingProxyType({"layouts": ("x_packed",)})

    def _attend(
        self, layer: LayerParams, query: Tensor, cache: KVCache, rows: Decodes, out: Tensor, scratch: Tensor
    ) -> None:
        self._function(
            out=out,
            **self._parted(rows, scratch),
            query=query,
            key_cache=cache.k,
            value_cache=cache.v,
            num_kv_heads=self.spec.num_kv_heads,
            scale=self.spec.scale,
            block_tables=rows.table,
            context_lens=rows.lengths,
            block_size=self.spec.block_size,
            max_context_len=rows.longest,
            alibi_slopes=layer.alibi_slopes,
            kv_cache_dtype="auto",
            k_scale=self._one,
            v_scale=self._one,
        )


class ShuffledDecode(PagedDecode):
    """Over ``shuffle`` blocks, by what AITER prefers for the load: its assembly kernel, or the HIP one.

    So it takes what both do: the assembly kernel is made for heads of 128 and blocks of 16, its scale is 1/sqrt(128).
    """

    op = "paged_attention_common"
    own = MappingProxyType(
        {
            "head_sizes": one_of(128),
            "block_sizes": one_of(16),
            "any_scale": False,
            "alibi": False,
            "layouts": ("shuffle",),
        }
    )

    def _attend(
        self, layer: LayerParams, query: Tensor, cache: KVCache, rows: Decodes, out: Tensor, scratch: Tensor
    ) -> None:
        self._function(
            Q=query,
            K=cache.k,
            V=cache.v.transpose(2, 3),  # as it lies in memory
            **self._parted(rows, scratch),
            block_tables=rows.table,
            context_lens=rows.lengths,
            block_tables_stride0=rows.table.stride(0),
            scale=self.spec.scale,
            max_qlen=1,
            max_seq_len=rows.longest,
            K_QScale_hip=self._one,
            V_QScale_hip=self._one,
            out_=out,
            kv_cache_dtype="auto",
        )


def capped_alibi(spec: AttentionSpec) -> tuple[Mismatch, ...]:
    """The objection of kernels that add ALiBi before the softcap, or might."""
    if not (spec.alibi and spec.softcap):
        return ()
    return (Mismatch(field="alibi", asked="with a softcap", offered="without: it comes before the cap there"),)
