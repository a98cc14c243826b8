"""`BorrowedConfig`: what there is to know about a model that transformers' code will run."""

from __future__ import annotations

from dataclasses import dataclass

from ...attention import DTYPE_FORMATS, AttentionSpec, kv_format, model_window
from .trace import TracedLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedConfig:
    """A model of transformers', as a trace of it found it (see `borrow`)."""

    architecture: str
    """Class name in transformers."""
    implementation: str
    """``"transformers"`` and its version."""
    source: str
    """Path of the config it was read from, for messages."""
    vocab_size: int
    """Rows of the embedding; the tokenizer may know fewer tokens."""
    max_position: int
    """Longest text, in tokens, that the model is made for."""
    dtype: str
    """Of the stored weights: a key of `DTYPE_FORMATS`."""
    layers: tuple[TracedLayer, ...]
    num_parameters: int
    """Weights of the model; a tied output projection counts once."""
    num_looked_up: int
    """Of those, the weights that one token does not use: embeddings that are no output, experts it is not sent to."""
    body: bool = False
    """Only the body is loaded: it gives hidden states, which are pooled, and no logits. Nothing is cached."""
    first_position: int = 0
    """Position of a text's first token, as the model counts."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer; from `generation_config.json` where that names any."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def attention_specs(self, dtype: str, *, block_size: int = 16, kv_format: str = "auto") -> dict[str, AttentionSpec]:
        """Layer name → the attention computed there in `dtype`, in the order of the layers."""
        return {
            layer.name: AttentionSpec(
                num_heads=layer.num_heads,
                num_kv_heads=layer.num_kv_heads,
                head_size=layer.head_size,
                head_size_v=layer.head_size_v,
                dtype=dtype,
                kv_format=kv_format,
                kind="decoder" if layer.causal else "encoder",
                kv_source="ragged" if self.body else "cache",
                block_size=block_size,
                causal=layer.causal,
                window=model_window(layer.window, causal=layer.causal),
                scale=layer.scale,
                softcap=layer.softcap,
                sinks=bool(layer.sinks),
                alibi=layer.alibi,
            )
            for layer in self.layers
        }

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights held in `dtype`."""
        return self.num_parameters * kv_format(DTYPE_FORMATS[dtype]).element_bytes

    def lookup_bytes(self, dtype: str) -> int:
        """Bytes of the weights in `dtype` that one token does not use."""
        return self.num_looked_up * kv_format(DTYPE_FORMATS[dtype]).element_bytes

    def flops_per_token(self) -> int:
        """Multiplications and additions for one token, attention apart."""
        return 2 * (self.num_parameters - self.num_looked_up)
