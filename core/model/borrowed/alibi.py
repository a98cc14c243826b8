"""Architectures of transformers' that compute attention themselves, all with ALiBi: MPT, Bloom and Falcon.

Their modules are left as they are but for `forward`, which becomes one that calls the attention function like the other
architectures' does, with the slopes. Press et al. 2021, arXiv 2108.12409.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[..., tuple[Tensor, None]]


def adapt(model: Any) -> None:
    """Let the attention modules of `model` that compute attention themselves call the attention function instead."""
    for module in model.modules():
        forward = FORWARDS.get(type(module).__name__)
        if forward is not None:
            slopes = SLOPES[type(module).__name__](module, model.config)
            module.forward = partial(forward, module, model.config, slopes)


def masks_for(model: Any) -> dict[str, Tensor]:
    """The mask that MPT converts before it hands it on, to a `forward` of ours that has no use for it."""
    return {"attention_mask": torch.zeros(1, 1, 1, 1)} if model.config.model_type == "mpt" else {}


def _attend(
    module: nn.Module, config: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, slopes: Tensor | None
) -> Tensor:
    """(1, T, heads · channels) for query, key and value (1, heads, T, channels)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function = ALL_ATTENTION_FUNCTIONS[config._attn_implementation]
    out, _ = function(module, query, key, value, None, scaling=scale, is_causal=True, alibi_slopes=slopes)
    return out.flatten(2)


def _bloom(
    module: Any, config: Any, slopes: Tensor, hidden_states: Tensor, residual: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    query, key, value = module._reshape(module.query_key_value(hidden_states))
    out = _attend(module, config, query, key, value, module.inv_norm_factor, slopes)
    return module.dense(out) + residual, None


def _mpt(module: Any, config: Any, slopes: Tensor, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    query, key, value = (
        part.unflatten(2, (module.n_heads, module.head_dim)).transpose(1, 2) for part in mixed.chunk(3, dim=2)
    )
    return module.out_proj(_attend(module, config, query, key, value, module.softmax_scale, slopes)), None


def _falcon(
    module: Any, config: Any, slopes: Tensor | None, hidden_states: Tensor, position_embeddings: Any = None, **_: Any
) -> tuple[Tensor, None]:
    parts = module._split_heads(module.query_key_value(hidden_states))
    query, key, value = (part.transpose(1, 2) for part in parts)
    if module.new_decoder_architecture:  # whose KV heads come repeated, one for each query head
        repeats = module.num_heads // module.num_kv_heads
        key, value = key[:, ::repeats], value[:, ::repeats]
    if slopes is None:
        query, key = _modelling(module).apply_rotary_pos_emb(query, key, *position_embeddings)
    return module.dense(_attend(module, config, query, key, value, module.inv_norm_factor, slopes)), None


def _bloom_slopes(module: Any, config: Any) -> Tensor:
    return _second(_modelling(module).build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32))


def _mpt_slopes(module: Any, config: Any) -> Tensor:
    bias = _modelling(module).build_mpt_alibi_tensor(module.n_heads, 2, config.attn_config.alibi_bias_max, "cpu")
    return -bias[:, 0, 0]


def _falcon_slopes(module: Any, config: Any) -> Tensor | None:
    if not config.alibi:
        return None
    # The scale is applied to the bias too, unlike elsewhere.
    bias = _modelling(module).build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)
    return _second(bias) * module.inv_norm_factor


def _second(bias: Tensor) -> Tensor:
    """The slopes (heads,), from a bias (heads, 1, positions) that is the slope times the position."""
    return bias[:, 0, 1].clone()


def _modelling(module: Any) -> Any:
    """The module of transformers' that the class stands in."""
    return sys.modules[type(module).__module__]


FORWARDS: dict[str, Forward] = {"BloomAttention": _bloom, "MptAttention": _mpt, "FalconAttention": _falcon}
"""Class of an attention module → its new `forward(module, config, slopes, hidden_states, …)`."""
SLOPES: dict[str, Callable[[Any, Any], Tensor | None]] = {
    "BloomAttention": _bloom_slopes,
    "MptAttention": _mpt_slopes,
    "FalconAttention": _falcon_slopes,
}
"""The same class → float32 (heads,) slopes, on the host; None where the model has RoPE instead."""
