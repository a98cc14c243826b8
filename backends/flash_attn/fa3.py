"""`FlashAttention3`: the Hopper build, module ``flash_attn_interface``."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from torch import Tensor

from ...core.attention import (
    ANY,
    AttentionSpec,
    Capabilities,
    Device,
    GraphSupport,
    LayerParams,
    Limits,
    Requirement,
    Workspace,
)
from .common import FlashAttention, Plan

HOPPER = frozenset({9})


class FlashAttention3(FlashAttention):
    """FlashAttention 3 on Hopper (Shah et al. 2024, arXiv 2407.08608).

    Pages of any size, through the function for caches: the one for ragged batches takes none. That one has returned its
    LSE always, and later only where asked. Whole pages are loaded, so what lies behind a row's last key has to be
    finite. No sinks and no ALiBi; 8-bit floats would need an 8-bit query.
    """

    requires = (Requirement(package="flash-attn-3", versions=">=3.0.0b1,<4"),)

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if not cls.fits(device, HOPPER):
            return Capabilities()
        return cls.offers(block_sizes=ANY, needs_zeroed_cache=True, graph=GraphSupport.UNIFORM)

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        library = import_module("flash_attn_interface")
        self._varlen, self._paged = library.flash_attn_varlen_func, library.flash_attn_with_kvcache
        self._asks_for_lse = "return_attn_probs" in inspect.signature(self._varlen).parameters
        left, right = spec.window or (-1, -1)
        self._common = {
            "softmax_scale": spec.scale,
            "causal": spec.causal,
            "window_size": (left, 0 if spec.causal else right),
            "softcap": spec.softcap or 0.0,
        }

    def call(
        self, layer: LayerParams, query: Tensor, key: Tensor, value: Tensor, plan: Plan, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        attend = self._over_rows if plan.table is None else self._over_pages
        result = attend(query, key, value, plan, lse)
        if isinstance(result, tuple):
            return result[0], result[1].T
        return result, None

    def _over_pages(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, lse: bool) -> Any:
        return self._paged(
            q=query,
            k_cache=key,
            v_cache=value,
            cache_seqlens=plan.lengths,
            page_table=plan.table,
            cu_seqlens_q=plan.starts,
            max_seqlen_q=plan.max_query_len,
            return_softmax_lse=lse,
            **self._common,
        )

    def _over_rows(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, lse: bool) -> Any:
        return self._varlen(
            q=query,
            k=key,
            v=value,
            cu_seqlens_q=plan.starts,
            cu_seqlens_k=plan.key_starts,
            max_seqlen_q=plan.max_query_len,
            max_seqlen_k=plan.max_key_len,
            **self._common,
            **({"return_attn_probs": lse} if self._asks_for_lse else {}),
        )
