"""Attention as one operator: `torch.compile` keeps the call whole and traces the model on both sides of it.

What the operator does is looked up when it runs, by the layer's name in the forward context, so a compiled model goes
on with other backends, caches and plans. The idea is vLLM's `unified_attention_with_output`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .context import current_context


def attend(query: Tensor, key: Tensor | None, value: Tensor | None, out: Tensor, layer_name: str) -> None:
    """Write `key` (T, Hkv, D) and `value` (T, Hkv, Dv), where given, into the layer's cache; then fill `out`
    (T, Hq, Dv) for `query` (T, Hq, D)."""
    context = current_context()
    layer = context.layers[layer_name]
    if key is not None and value is not None and layer.kv_cache is not None:
        layer.backend.write_kv(layer.params, key, value, layer.kv_cache, context.slot_mappings[layer.group])
    plan = context.plans[layer.group]
    layer.backend.forward(layer.params, query, key=key, value=value, kv_cache=layer.kv_cache, plan=plan, out=out)


attention_op = torch.library.custom_op(
    "headstock::attention",
    attend,
    mutates_args=("out",),
    schema="(Tensor query, Tensor? key, Tensor? value, Tensor(a!) out, str layer_name) -> ()",
)
"""`attend` for the compiler, which must neither drop nor reorder it: it writes `out`, and a cache that is not seen."""


def _fake(query: Tensor, key: Tensor | None, value: Tensor | None, out: Tensor, layer_name: str) -> None:
    """Nothing to say about shapes: the layer made `out`."""


attention_op.register_fake(_fake)  # pyright: ignore[reportUnknownMemberType]
