"""`Attention`: the module a model definition puts where attention happens. It writes, then attends."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .context import current_context
from .spec import AttentionSpec


class Attention(nn.Module):
    """Attention of one layer. Which backend computes it is decided elsewhere and looked up by `name` at each call."""

    def __init__(
        self, name: str, spec: AttentionSpec, *, sinks: Tensor | None = None, alibi_slopes: Tensor | None = None
    ) -> None:
        super().__init__()
        self.name = name
        self.spec = spec
        self.sinks = sinks
        self.alibi_slopes = alibi_slopes

    def forward(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> Tensor:
        """(T, Hq, Dv) for query (T, Hq, D), key (T, Hkv, D), value (T, Hkv, Dv); without, it reads a shared cache."""
        context = current_context()
        layer = context.layers[self.name]
        if key is not None and value is not None and layer.kv_cache is not None:
            layer.backend.write_kv(layer.params, key, value, layer.kv_cache, context.slot_mappings[layer.group])
        out = torch.empty(
            (query.shape[0], query.shape[1], self.spec.head_size_v), dtype=query.dtype, device=query.device
        )
        layer.backend.forward(
            layer.params,
            query,
            key=key,
            value=value,
            kv_cache=layer.kv_cache,
            plan=context.plans[layer.group],
            out=out,
        )
        return out
