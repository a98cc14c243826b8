"""`FlashAttention4`: the distribution flash-attn-4, module ``flash_attn.cute``."""

from __future__ import annotations

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
    Mismatch,
    Requirement,
    Workspace,
)
from .common import HEAD_SIZES, FlashAttention, Plan

HOPPER, BLACKWELL = 9, frozenset({10, 11})
SIZES_ON_BLACKWELL = ((192, 128), (256, 256))
"""(head size, V's), besides those up to 128."""


class FlashAttention4(FlashAttention):
    """FlashAttention 4, written in CuTe DSL, on Hopper and on Blackwell's server cards; a pre-release.

    A window without a bound is None there, sinks are ``learnable_sink``, arguments go by keyword (the fourth by
    position is something else). Whole pages are loaded: what lies behind a row's last key has to be finite. The module
    calls itself 0.0.0 in every version, so the distribution is asked. No pages on consumer cards, which are left out.
    """

    requires = (Requirement(package="flash-attn-4", versions=">=4.0.0b36,<5"),)

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if not cls.fits(device, BLACKWELL | {HOPPER}):
            return Capabilities()
        return cls.offers(
            head_sizes_v=HEAD_SIZES,
            block_sizes=ANY,
            sinks=True,
            needs_zeroed_cache=True,
            graph=GraphSupport.UNIFORM,
        )

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        found, sizes = super().refusals(spec, device), (spec.head_size, spec.head_size_v)
        on_hopper = device.capability is None or device.capability[0] == HOPPER
        if on_hopper or max(sizes) <= 128 or sizes in SIZES_ON_BLACKWELL:
            return found
        offered = "up to 128, " + ", ".join(f"{k} with V of {v}" for k, v in SIZES_ON_BLACKWELL)
        return (
            *found,
            Mismatch(field="head_size", asked=f"{sizes[0]} with V of {sizes[1]}", offered=offered),
        )

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._varlen = import_module("flash_attn.cute").flash_attn_varlen_func
        left, right = spec.window or (-1, -1)
        right = 0 if spec.causal else right
        self._window = (None if left < 0 else left, None if right < 0 else right)

    def call(
        self, layer: LayerParams, query: Tensor, key: Tensor, value: Tensor, plan: Plan, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        keys: dict[str, Any] = {"cu_seqlens_k": plan.key_starts}
        if plan.table is not None:
            keys = {"seqused_k": plan.lengths, "page_table": plan.table}
        if layer.sinks is not None:
            keys["learnable_sink"] = layer.sinks
        out, sums = self._varlen(
            q=query,
            k=key,
            v=value,
            cu_seqlens_q=plan.starts,
            max_seqlen_q=plan.max_query_len,
            max_seqlen_k=plan.max_key_len,
            softmax_scale=self.spec.scale,
            causal=self.spec.causal,
            window_size=self._window,
            softcap=self.spec.softcap or 0.0,
            return_lse=lse,
            **keys,
        )
        return out, sums.T if lse else None
