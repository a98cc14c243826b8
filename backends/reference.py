"""The float64 reference as a backend: what others are compared with, and the last resort where nothing else fits."""

from __future__ import annotations

from torch import Tensor

from ..core.attention import (
    ANY,
    KV_FORMATS,
    LAYOUTS,
    AttentionBackend,
    AttentionBatch,
    Capabilities,
    Device,
    KVCache,
    LayerParams,
)
from ..core.attention.reference import attend_batch


class ReferenceBackend(AttentionBackend[AttentionBatch]):
    """Every query row by itself, in float64, over just the keys it sees. For clarity, not for speed."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return Capabilities(
            dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
            kv_formats=frozenset(KV_FORMATS),
            kv_scales=frozenset({"tensor", "head"}),
            head_sizes=ANY,
            head_sizes_v=ANY,
            group_sizes=ANY,
            block_sizes=ANY,
            kinds=frozenset({"decoder", "encoder", "cross"}),
            kv_sources=frozenset({"cache", "ragged"}),
            causal=frozenset({True, False}),
            windows=frozenset({"left", "right"}),
            any_scale=True,
            softcap=True,
            alibi=True,
            sinks=True,
            masks=frozenset({"spans", "tree"}),
            lse=True,
            batch_invariant=True,
            layouts=tuple(LAYOUTS),
            zero_length_rows=True,
            max_cache_elements=2**63 - 1,
        )

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: AttentionBatch,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        exact, lse = attend_batch(layer, query, plan, key=key, value=value, kv_cache=kv_cache)
        out.copy_(exact)
        if lse_out is not None:
            lse_out.copy_(lse)
