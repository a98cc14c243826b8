"""`AiterFlashAttention`: AITER's compiled kernels, one for decodes and one for all other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.attention import (
    ANY,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Limits,
    Mismatch,
    Requirement,
    Workspace,
    one_of,
)
from .._aiter_ops import AITER, AiterOptions, bind, check_op, found, unsupported
from ..libraries import has_versions, stored_as_computed
from .gathered import Keys, Part, continued, prompts, windowed
from .paged import OP as PAGED
from .paged import Decodes, PagedDecode, decodes, suits

VARLEN, UNIFIED = "flash_attn_varlen_func", "unified_attention"
SOFTCAP_EVERYWHERE = Requirement(package=AITER.package, versions=">=0.1.9")
"""Releases in which layers with a softcap surely go to kernels that know it (ROCm/aiter#1519)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A step: decodes first."""

    decodes: Decodes | None
    parts: tuple[Part, ...]
    tokens: int
    """What is computed; tokens behind are padding."""


class AiterFlashAttention(AttentionBackend[Plan]):
    """AITER's compiled kernels, the step split in three as vLLM does for them.

    Decodes go to paged attention, or to unified attention where that lacks something: windows, sinks, heads of 256,
    more than 16 query heads a KV head. Prompts go to flash attention over their own K and V. Rows between, with context
    and several queries, do that as well, and once more over each piece of their context, which is gathered into the
    workspace; the pieces are merged by log-sum-exp. With a window the tail of the context is gathered with the row's
    own keys instead, and nothing is merged. A sink is one more piece, a log-sum-exp without a value, merged once.
    """

    requires = (AITER,)
    Options = AiterOptions
    context_tokens: ClassVar[int] = 32 * 1024
    """Keys that are gathered at a time."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if unsupported(device, VARLEN, PAGED, UNIFIED):
            return Capabilities()
        return Capabilities(
            dtypes=frozenset({"bfloat16", "float16"}),
            kv_formats=frozenset({"bf16", "fp16"}),
            head_sizes=one_of(64, 128, 256),
            group_sizes=ANY,
            block_sizes=one_of(16, 32),
            kinds=frozenset({"decoder"}),
            kv_sources=frozenset({"cache"}),
            causal=frozenset({True}),
            windows=frozenset({"left"}),
            any_scale=True,
            softcap=True,
            sinks=True,
            layouts=("nhd",),
            graph=GraphSupport.SINGLE_TOKEN,
            padded_seq_len=1,
            needs_zeroed_cache=True,
            max_cache_elements=2**62,
        )

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        refused = stored_as_computed(spec)
        drops = spec.softcap and (spec.dtype, spec.head_size) == ("bfloat16", 128)
        if drops and not has_versions(device, (SOFTCAP_EVERYWHERE,)):
            offered = f"{AITER.package} {SOFTCAP_EVERYWHERE.versions}: the kernel for these drops it before"
            refused += (Mismatch(field="softcap", asked="bfloat16 and heads of 128", offered=offered),)
        return refused

    @classmethod
    def availability(cls) -> Availability:
        return found()

    @classmethod
    def ops(cls, spec: AttentionSpec, device: Device, options: AiterOptions) -> tuple[str, ...]:
        return (VARLEN, PAGED if suits(spec) else UNIFIED)

    @classmethod
    def check_op(cls, name: str, target: str) -> None:
        check_op(name, target)

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._left = spec.window[0] if spec.window else -1
        self._varlen = bind(VARLEN, self.options)
        workspace.get(self._gathered_bytes(min(self.context_tokens, limits.max_num_reqs * limits.max_model_len)))
        self._paged = self._unified = None
        if suits(spec):
            self._paged = PagedDecode(spec, device, limits, workspace, self.options)
        else:
            self._unified = bind(UNIFIED, self.options)

    def _gathered_bytes(self, tokens: int) -> int:
        """K and V of so many tokens."""
        return 2 * tokens * self.spec.num_kv_heads * self.spec.head_size * 2

    def plan(self, batch: AttentionBatch) -> Plan:
        if batch.graph is not None:
            rows = len(batch.seq_lens)
            return Plan(decodes=decodes(batch, rows, self.limits), parts=(), tokens=rows)
        counts, rows = batch.counts, batch.num_reqs
        first, second = counts.decodes, counts.decodes + counts.extends
        size, parts = self.spec.block_size, list[Part]()
        if counts.extends:
            extends, offset = _real(batch, first, second), batch.tokens(0, first)[1]
            if self._left < 0:
                parts.append(continued(extends, offset, size, self.context_tokens))
            else:
                parts += windowed(extends, offset, size, self.context_tokens, self._left)
        if second < rows:
            parts.append(prompts(_real(batch, second, rows), batch.tokens(0, second)[1], size))
        single = decodes(batch, first, self.limits) if first else None
        return Plan(decodes=single, parts=tuple(parts), tokens=batch.tokens(0, rows)[1])

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: Plan,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        if kv_cache is None:
            raise ValueError("it attends over a paged cache, and none was given")
        if len(out) > plan.tokens:
            out[plan.tokens :].zero_()
        if plan.decodes is not None:
            rows = slice(0, plan.decodes.rows)
            if self._paged is not None:
                self._paged.attend(query[rows], kv_cache, plan.decodes, out[rows])
            else:
                self._attend_unified(layer, query[rows], kv_cache, plan.decodes, out[rows])
        for part in plan.parts:
            own = (None, None)
            if part.fresh and key is not None and value is not None:
                own = (key[part.tokens], value[part.tokens])
            self._attend(layer, query[part.tokens], own, kv_cache, part, out[part.tokens])

    def _attend_unified(self, layer: LayerParams, query: Tensor, cache: KVCache, rows: Decodes, out: Tensor) -> None:
        assert self._unified is not None
        self._unified(
            q=query,
            k=cache.k,
            v=cache.v,
            out=out,
            cu_seqlens_q=rows.starts,
            max_seqlen_q=1,
            seqused_k=rows.lengths,
            max_seqlen_k=rows.longest,
            softmax_scale=self.spec.scale,
            causal=True,
            window_size=(self._left, 0 if self._left >= 0 else -1),
            block_table=rows.table,
            softcap=self.spec.softcap or 0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            alibi_slopes=None,
            sinks=layer.sinks,
        )

    def _attend(
        self,
        layer: LayerParams,
        query: Tensor,
        own: tuple[Tensor | None, Tensor | None],
        cache: KVCache,
        part: Part,
        out: Tensor,
    ) -> None:
        key, value = own
        if key is None or value is None:
            key, value = self._gather(cache, part.keys)
        if not part.contexts and layer.sinks is None:
            self._call(query, key, value, part, part.keys, out=out)
            return
        result, lse = self._call(query, key, value, part, part.keys, return_lse=True)
        total, sums = result.float(), lse.T
        for keys in part.contexts:
            result, lse = self._call(
                query, *self._gather(cache, keys), part, keys, causal=False, window_size=(-1, -1), return_lse=True
            )
            total, sums = merged(total, sums, result, lse.T)
        if layer.sinks is not None:
            total = total * torch.sigmoid(sums - layer.sinks)[..., None]
        out.copy_(total)

    def _call(self, query: Tensor, key: Tensor, value: Tensor, part: Part, keys: Keys, **changes: Any) -> Any:
        window = (self._left, 0 if self._left >= 0 else -1)
        arguments: dict[str, Any] = {"causal": True, "window_size": window, "return_lse": False, "out": None}
        return self._varlen(
            q=query,
            k=key,
            v=value,
            cu_seqlens_q=part.starts,
            cu_seqlens_k=keys.starts,
            max_seqlen_q=part.max_query_len,
            max_seqlen_k=keys.longest,
            softmax_scale=self.spec.scale,
            logits_soft_cap=self.spec.softcap or 0.0,
            **(arguments | changes),
        )

    def _gather(self, cache: KVCache, keys: Keys) -> tuple[Tensor, Tensor]:
        """K and V (n, Hkv, D) of these keys, in the workspace."""
        count, heads, size = len(keys.slots), self.spec.num_kv_heads, self.spec.head_size
        room = self.workspace.get(self._gathered_bytes(count)).view(cache.k.dtype)
        planes = room.view(2, count, heads, size)
        for plane, target in zip((cache.k, cache.v), planes, strict=True):
            torch.index_select(plane.view(-1, heads, size), 0, keys.slots, out=target)
        return planes[0], planes[1]


def merged(total: Tensor, sums: Tensor, result: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from that over each: outputs (T, H, D) and natural LSE (T, H), the first in
    float32. A row without a key has an LSE of -inf; its output is 0 in the first and anything in the second.
    """
    both = torch.logaddexp(sums, lse)
    base = both.clamp_min(torch.finfo(torch.float32).min)  # -inf less -inf is no number
    second = result.float().masked_fill((lse == float("-inf"))[..., None], 0)
    return total * torch.exp(sums - base)[..., None] + second * torch.exp(lse - base)[..., None], both


def _real(batch: AttentionBatch, first: int, end: int) -> AttentionBatch:
    """Rows first ≤ r < end as a batch of their own, without the rows of padding behind the last."""
    part = batch.rows(first, end)
    if len(part.seq_lens) == end - first:
        return part
    return batch.rows(first, end + 1).rows(0, end - first)  # asked for all its rows, a batch gives itself, padding too
