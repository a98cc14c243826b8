"""The model architectures that the decoder runs, told apart by data, and the layer kinds that it does not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What `config.json` leaves unsaid about models of one class."""

    qkv_bias: bool | None = None
    """Whether Q, K and V have a bias; None: as `attention_bias` says."""
    output_bias: bool | None = None
    """Whether the output projection has a bias; None: as `attention_bias` says."""
    qk_norm: bool = False
    """Q and K heads pass an RMS norm before they are rotated."""
    windows: Literal["never", "always", "from_layer", "without_rope"] = "never"
    """Which layers `sliding_window` applies to where `layer_types` is absent: none, all, those from `max_window_layers`
    on, those without RoPE. The last two only with `use_sliding_window`."""
    nope_interval: int = 0
    """Every so many layers one has no RoPE, unless `no_rope_layers` says otherwise; 0 is none."""
    head_size: int | None = None
    """Where `head_dim` is absent; None: `hidden_size / num_attention_heads`."""
    tied: bool = False
    """Where `tie_word_embeddings` is absent."""
    theta: float = 10000.0
    """Where `rope_theta` is absent."""
    multipliers: bool = False
    """Embeddings, attention, residuals and logits are scaled by numbers in the config."""


ARCHITECTURES: dict[str, Architecture] = {
    "GraniteForCausalLM": Architecture(multipliers=True),
    "LlamaForCausalLM": Architecture(),
    "MinistralForCausalLM": Architecture(qkv_bias=False, output_bias=False, windows="always"),
    "MistralForCausalLM": Architecture(qkv_bias=False, output_bias=False, windows="always"),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True, output_bias=False, windows="from_layer"),
    "Qwen3ForCausalLM": Architecture(qk_norm=True, windows="from_layer", head_size=128),
    "SmolLM3ForCausalLM": Architecture(windows="without_rope", nope_interval=4, tied=True, theta=2e6),
}
"""`architectures[0]` of `config.json` → what is particular about it."""

MOST_LAYERS = 10_000
"""A config that says more is damaged."""
SUPPORTED_LAYERS = ("full_attention", "sliding_attention", "attention")

STATE_MODELS = {
    "falcon_mamba": "mamba",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "recurrent_gemma": "recurrent",
    "rwkv": "rwkv",
    "xlstm": "xlstm",
}
"""`model_type` of models that are made of state layers throughout → the kind of those layers."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def unsupported_layers(config: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """(layer index, kind) of every layer that the decoder cannot run, as far as `config` tells; experts come last."""
    count = min(_count(config, "num_hidden_layers"), MOST_LAYERS)
    for index, kind in enumerate(_layer_kinds(config, count)):
        if kind not in SUPPORTED_LAYERS:
            yield index, kind
    if config.get("kv_lora_rank"):
        yield from ((index, "latent attention (MLA)") for index in range(count))
    if any(isinstance(n := config.get(name), int) and n > 1 for name in EXPERT_COUNTS):
        first = _count(config, "first_k_dense_replace")
        yield from ((index, "mixture of experts") for index in range(first, count))


def _count(config: Mapping[str, Any], name: str) -> int:
    """The number there, or 0: here is only asked what cannot run, and the fields of what can are checked later."""
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _layer_kinds(config: Mapping[str, Any], count: int) -> list[str]:
    for name in ("layer_types", "layers_block_type"):
        if isinstance(kinds := config.get(name), list):
            return [str(kind) for kind in kinds]
    if pattern := config.get("hybrid_override_pattern"):
        names = {"M": "mamba2", "*": "full_attention", "-": "feed-forward only", "E": "mixture of experts"}
        return [names.get(letter, letter) for letter in str(pattern)]
    if interval := _count(config, "full_attention_interval"):
        return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
    if period := _count(config, "attn_layer_period"):
        offset = _count(config, "attn_layer_offset")
        return ["full_attention" if i % period == offset else "mamba" for i in range(count)]
    state = STATE_MODELS.get(str(config.get("model_type", "")))
    return [state] * (count or 1) if state else []
