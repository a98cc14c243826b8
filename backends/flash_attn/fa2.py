"""`FlashAttention2`: the library flash_attn 2.8."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ...core.attention import (
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    Device,
    GraphKey,
    GraphSupport,
    LayerParams,
    Limits,
    Mismatch,
    Requirement,
    Sizes,
    Workspace,
)
from .common import FlashAttention, Plan

AMPERE_OR_NEWER = frozenset({8, 9, 10, 11, 12})


class FlashAttention2(FlashAttention):
    """FlashAttention 2.8 over paged KV (Dao 2023, arXiv 2307.08691).

    Pages come in multiples of 256. Paged calls want offsets of the true lengths, which are summed on the device once a
    step. A row without a key has an LSE of +inf there. The build for AMD whose kernels are Triton's takes no pages and
    ignores window and softcap: on ROCm nothing but plain ragged attention is offered.
    """

    requires = (Requirement(package="flash-attn", versions=">=2.8,<2.9"),)

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if device.platform == "rocm":
            return cls.offers(
                kv_sources=frozenset({"ragged"}), windows=frozenset(), softcap=False, zero_length_rows=False
            )
        if not cls.fits(device, AMPERE_OR_NEWER):
            return Capabilities()
        return cls.offers(block_sizes=Sizes(low=256, multiple_of=256), alibi=True, graph=GraphSupport.UNIFORM)

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        found = super().refusals(spec, device)
        if spec.alibi and spec.lse:
            # Causal kernels add slope·column instead of -slope·distance: the softmax is the same, its sum is not.
            found += (Mismatch(field="lse", asked="with ALiBi", offered="without: the library's is shifted"),)
        if spec.lse and spec.causal and device.platform == "rocm":
            offered = "not causal: of a query without a key it is 0 in the build whose kernels are Triton's"
            found += (Mismatch(field="lse", asked="causal", offered=offered),)
        return found

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        library = import_module("flash_attn.flash_attn_interface")
        self._varlen = library.flash_attn_varlen_func
        self._lse_by_token = bool(getattr(library, "USE_TRITON_ROCM", False))
        left, right = spec.window or (-1, -1)
        self._window = (left, 0 if spec.causal else right)
        self._eager = [self._offsets(limits.max_num_reqs) for _ in range(limits.plans_in_flight + 1)]
        self._captured: dict[GraphKey, Tensor] = {}

    def _offsets(self, rows: int) -> Tensor:
        """int32 (rows+1,): room for offsets of keys, the first of which is 0."""
        return torch.zeros(rows + 1, dtype=torch.int32, device=self.device.torch_device)

    def plan(self, batch: AttentionBatch) -> Plan:
        plan, rows = super().plan(batch), len(batch.seq_lens)
        if plan.table is None:
            return plan
        if batch.graph is None:
            self._eager.append(self._eager.pop(0))
            return replace(plan, key_starts=self._eager[0][: rows + 1])
        key = replace(batch.graph, capturing=False)
        if key not in self._captured:
            self._captured[key] = self._offsets(rows)
        return replace(plan, key_starts=self._captured[key])

    def prepare(self, plan: Plan) -> None:
        if plan.table is not None and plan.key_starts is not None:
            torch.cumsum(plan.lengths, 0, dtype=torch.int32, out=plan.key_starts[1:])

    def call(
        self, layer: LayerParams, query: Tensor, key: Tensor, value: Tensor, plan: Plan, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        optional: dict[str, Any] = {}
        if plan.table is not None:
            optional["block_table"] = plan.table
        if layer.alibi_slopes is not None:
            optional["alibi_slopes"] = layer.alibi_slopes
        result = self._varlen(
            query,
            key,
            value,
            cu_seqlens_q=plan.starts,
            cu_seqlens_k=plan.key_starts,
            max_seqlen_q=plan.max_query_len,
            max_seqlen_k=plan.max_key_len,
            softmax_scale=self.spec.scale,
            causal=self.spec.causal,
            window_size=self._window,
            softcap=self.spec.softcap or 0.0,
            return_attn_probs=lse,
            **optional,
        )
        if not lse:
            return result, None
        return result[0], result[1] if self._lse_by_token else result[1].T
