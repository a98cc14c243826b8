"""`Decoder`: one definition for all supported architectures, steered by `ModelConfig`.

Tokens of all sequences of a step stand in one row, without a batch dimension: only attention knows which belong
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention, AttentionSpec
from .config import LayerConfig, ModelConfig, layer_name
from .layers import MLP, Linear, RMSNorm, Rotary, parameter, rotate


class SelfAttention(nn.Module):
    """Projections around `Attention`, with Q, K and V in one matrix."""

    def __init__(
        self, config: ModelConfig, layer: LayerConfig, attention: Attention, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        size, heads, kv_heads = config.head_size, config.num_heads, config.num_kv_heads
        self.heads, self.kv_heads, self.head_size, self.rope = heads, kv_heads, size, layer.rope
        self.qkv_proj = Linear(
            config.hidden_size, (heads + 2 * kv_heads) * size, bias=config.qkv_bias, dtype=dtype, device=device
        )
        self.o_proj = Linear(heads * size, config.hidden_size, bias=config.output_bias, dtype=dtype, device=device)
        norms = (RMSNorm(size, config.rms_norm_eps, dtype=dtype, device=device) for _ in range(2))
        self.q_norm, self.k_norm = norms if config.qk_norm else (None, None)
        self.attn = attention

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        heads = self.qkv_proj(x).view(x.shape[0], -1, self.head_size)
        turning, value = heads.split((self.heads + self.kv_heads, self.kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = turning.split((self.heads, self.kv_heads), 1)
            turning = torch.cat((self.q_norm(query), self.k_norm(key)), 1)
        if self.rope:
            turning = rotate(turning, cosine, sine)
        query, key = turning.split((self.heads, self.kv_heads), 1)
        return self.o_proj(self.attn(query, key, value).flatten(1))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(
        self, config: ModelConfig, layer: LayerConfig, attention: Attention, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.self_attn = SelfAttention(config, layer, attention, dtype, device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.mlp = MLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias, dtype=dtype, device=device)
        self.multiplier = config.residual_multiplier

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = torch.add(x, self.self_attn(self.input_layernorm(x), cosine, sine), alpha=self.multiplier)
        return torch.add(x, self.mlp(self.post_attention_layernorm(x)), alpha=self.multiplier)


class Decoder(nn.Module):
    """A decoder-only transformer for inference. Weights are uninitialised until `load_decoder` fills them."""

    def __init__(
        self, config: ModelConfig, specs: Mapping[str, AttentionSpec], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.config = config
        outer = {"dtype": dtype, "device": device}
        self.lm_head = Linear(config.hidden_size, config.vocab_size, **outer)
        if config.tie_word_embeddings:
            self.embed_tokens = self.lm_head.weight
        else:
            self.embed_tokens = parameter(torch.empty(config.vocab_size, config.hidden_size, **outer))
        self.rotary = Rotary(config.rope, config.head_size, device=device)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, Attention(name := layer_name(index), specs[name]), dtype, device)
            for index, layer in enumerate(config.layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **outer)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Final hidden states (T, hidden) of tokens `input_ids` int64 (T,), at `positions` int64 (T,) of their texts.

        Runs inside `forward_context`, which says how the tokens belong together and who attends.
        """
        x = F.embedding(input_ids, self.embed_tokens)
        if self.config.embedding_multiplier != 1.0:
            x = x * self.config.embedding_multiplier
        cosine, sine = self.rotary(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.norm(x)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits (rows, vocabulary) of rows of `forward`'s result: pass only those that are sampled from."""
        logits = self.lm_head(hidden)
        return logits if self.config.logits_divisor == 1.0 else logits / self.config.logits_divisor

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face's name of every tensor of a checkpoint, and the view of a parameter that it is copied into."""
        yield "model.embed_tokens.weight", self.embed_tokens
        yield "model.norm.weight", self.norm.weight
        if not self.config.tie_word_embeddings:
            yield "lm_head.weight", self.lm_head.weight
        for index, layer in enumerate(self.layers):
            for name, tensor in layer.named_parameters():
                for part, view in self._parts(name, tensor):
                    yield f"model.layers.{index}.{part}", view

    def _parts(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensors that a parameter of a layer is made of, one after the other along its first dimension."""
        config = self.config
        queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        inner = config.intermediate_size
        fused = {
            "qkv_proj": {"q_proj": queries, "k_proj": keys, "v_proj": keys},
            "gate_up_proj": {"gate_proj": inner, "up_proj": inner},
        }
        module = name.split(".")[1] if "." in name else name
        start = 0
        for part, rows in fused.get(module, {module: tensor.shape[0]}).items():
            yield name.replace(module, part), tensor[start : start + rows]
            start += rows
