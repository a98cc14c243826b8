"""AITER's flash attention over ragged K and V: what is left of a step without its decodes."""

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
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Limits,
    Mismatch,
    Requirement,
    Workspace,
    kv_format,
    one_of,
)
from .._aiter_ops import AITER, AiterOptions, bind, unsupported
from ..libraries import has_versions, stored_as_computed
from .gathered import Keys, Part, continued, prompts, windowed
from .paged import capped_alibi
from .unified import eight_bits, shifted_alibi

OP = "flash_attn_varlen_func"
SOFTCAP_EVERYWHERE = Requirement(package=AITER.package, versions=">=0.1.9")
"""Releases in which layers with a softcap surely go to kernels that know it (ROCm/aiter#1519)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A step."""

    parts: tuple[Part, ...]
    tokens: int
    """What is computed; tokens behind are padding."""


class Varlen(AttentionBackend[Plan]):
    """Prompts over their own K and V; rows with context over these as well, and over their context, which is gathered
    into the workspace in pieces and merged by log-sum-exp. A part of the backends here, not a backend to name.

    With a window the tail of the context is gathered with the row's own keys instead, and nothing is merged. With ALiBi
    all of it is, as the kernel measures from the end of what it is given. A sink is one more piece, a log-sum-exp
    without a value, merged once. What is gathered from 8-bit caches is multiplied out.
    """

    Options = AiterOptions
    context_tokens: ClassVar[int] = 32 * 1024
    """Keys that are gathered at a time."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if unsupported(device, OP):
            return Capabilities()
        return Capabilities(
            dtypes=frozenset({"bfloat16", "float16"}),
            kv_formats=frozenset({"bf16", "fp16", eight_bits(device)}),
            kv_scales=frozenset({"tensor"}),
            head_sizes=one_of(64, 128, 256),
            group_sizes=ANY,
            block_sizes=one_of(16, 32),
            kinds=frozenset({"decoder"}),
            kv_sources=frozenset({"cache"}),
            causal=frozenset({True}),
            windows=frozenset({"left"}),
            any_scale=True,
            softcap=True,
            alibi=True,
            sinks=True,
            layouts=("nhd", "shuffle"),
            graph=GraphSupport.NEVER,
            max_cache_elements=2**62,
        )

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        refused = () if kv_format(spec.kv_format).scaled else stored_as_computed(spec)
        drops = spec.softcap and (spec.dtype, spec.head_size) == ("bfloat16", 128)
        if drops and not has_versions(device, (SOFTCAP_EVERYWHERE,)):
            offered = f"{AITER.package} {SOFTCAP_EVERYWHERE.versions}: the kernel for these drops it before"
            refused += (Mismatch(field="softcap", asked="bfloat16 and heads of 128", offered=offered),)
        return refused + shifted_alibi(spec) + capped_alibi(spec)

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._left = spec.window[0] if spec.window else -1
        self._function = bind(OP, self.options)
        most = min(self.context_tokens, limits.max_num_reqs * limits.max_model_len)
        workspace.get(self._gathered_bytes(max(most, limits.max_model_len) if spec.alibi else most))

    def _gathered_bytes(self, tokens: int) -> int:
        """K and V of so many tokens."""
        return 2 * tokens * self.spec.num_kv_heads * self.spec.head_size * 2

    def plan(self, batch: AttentionBatch) -> Plan:
        first, rows = batch.counts.decodes + batch.counts.extends, batch.num_reqs
        size, parts = self.spec.block_size, list[Part]()
        if first:
            extends = _real(batch, 0, first)
            if self._left < 0 and not self.spec.alibi:
                parts.append(continued(extends, 0, size, self.context_tokens))
            else:
                seen = self._left if self._left >= 0 else self.limits.max_model_len
                parts += windowed(extends, 0, size, self.context_tokens, seen)
        if first < rows:
            parts.append(prompts(_real(batch, first, rows), batch.tokens(0, first)[1], size))
        return Plan(parts=tuple(parts), tokens=batch.num_tokens)

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
        for part in plan.parts:
            own = (None, None)
            if part.fresh and key is not None and value is not None:
                own = (key[part.tokens], value[part.tokens])
            self._attend(layer, query[part.tokens], own, kv_cache, part, out[part.tokens])

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
            key, value = self._gather(layer, cache, part.keys)
        if not part.contexts and layer.sinks is None:
            self._call(layer, query, key, value, part, part.keys, out=out)
            return
        result, lse = self._call(layer, query, key, value, part, part.keys, return_lse=True)
        total, sums = result.float(), lse.T
        for keys in part.contexts:
            result, lse = self._call(
                layer,
                query,
                *self._gather(layer, cache, keys),
                part,
                keys,
                causal=False,
                window_size=(-1, -1),
                return_lse=True,
            )
            total, sums = merged(total, sums, result, lse.T)
        if layer.sinks is not None:
            total = total * torch.sigmoid(sums - layer.sinks)[..., None]
        out.copy_(total)

    def _call(
        self, layer: LayerParams, query: Tensor, key: Tensor, value: Tensor, part: Part, keys: Keys, **changes: Any
    ) -> Any:
        window = (self._left, 0 if self._left >= 0 else -1)
        arguments: dict[str, Any] = {"causal": True, "window_size": window, "return_lse": False, "out": None}
        return self._function(
            q=query,
            k=key,
            v=value,
            cu_seqlens_q=part.starts,
            cu_seqlens_k=keys.starts,
            max_seqlen_q=part.max_query_len,
            max_seqlen_k=keys.longest,
            softmax_scale=self.spec.scale,
            logits_soft_cap=self.spec.softcap or 0.0,
            alibi_slopes=layer.alibi_slopes,
            **(arguments | changes),
        )

    def _gather(self, layer: LayerParams, cache: KVCache, keys: Keys) -> tuple[Tensor, Tensor]:
        """K and V (n, Hkv, D) of these keys, in the workspace and the query's dtype."""
        count, heads, size = len(keys.slots), self.spec.num_kv_heads, self.spec.head_size
        room = self.workspace.get(self._gathered_bytes(count)).view(getattr(torch, self.spec.dtype))
        planes = room.view(2, count, heads, size)
        stored = ((cache.k, layer.k_scale, layer.k_scale_float), (cache.v, layer.v_scale, layer.v_scale_float))
        for (plane, scale, factor), target in zip(stored, planes, strict=True):
            if scale is None and cache.layout.name == "nhd":
                torch.index_select(plane.view(-1, heads, size), 0, keys.slots, out=target)
                continue
            target.copy_(cache.layout.gather_rows(plane, keys.slots, cache.block_size))
            if scale is not None:
                target.mul_(factor)
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
