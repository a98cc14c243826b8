"""`Attention`: the module a model definition puts where attention happens. It writes, then attends."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .op import attend, attention_op
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
        out = torch.empty(
            (query.shape[0], query.shape[1], self.spec.head_size_v), dtype=query.dtype, device=query.device
        )
        # Calling through the operator takes a tenth of a millisecond, so only the compiler is made to.
        call = attention_op if torch.compiler.is_compiling() else attend
        call(query, key, value, out, self.name)
        return out
