"""Small GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from support.model import TINY

MERGES = ["t h", "th e", "Ġ the", "1 2", "Ċ Ċ"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), "<think>"]
"""Every byte, a few merges, three control tokens and one that is matched whole."""

CONFIG: dict[str, Any] = {**TINY, "vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 64}
"""A Llama whose matrices divide into blocks of 32."""

METADATA: dict[str, Any] = {
    "block_count": CONFIG["num_hidden_layers"],
    "context_length": CONFIG["max_position_embeddings"],
    "embedding_length": CONFIG["hidden_size"],
    "feed_forward_length": CONFIG["intermediate_size"],
    "attention.head_count": CONFIG["num_attention_heads"],
    "attention.head_count_kv": CONFIG["num_key_value_heads"],
    "attention.key_length": CONFIG["head_dim"],
    "attention.layer_norm_rms_epsilon": CONFIG["rms_norm_eps"],
    "rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL) - 1) + [4],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}
"""Keys without `tokenizer.` stand below the architecture."""

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    arch: str = "llama",
    permuted: bool = True,
    kind: str = "F32",
    extra: Mapping[str, Tensor] | None = None,
    **metadata: Any,
) -> Path:
    """Write `tensors`, named as Hugging Face names them, matrices as `kind`; `...` leaves a metadata key out.

    With `permuted`, the rows of Q and K are put in the order llama.cpp's Llama wants. `extra` go in as they are.
    """
    writer = GGUFWriter(path, arch)
    for key, value in {**METADATA, **metadata}.items():
        name = key if key.startswith("tokenizer.") else f"{arch}.{key}"
        if value is ...:
            continue
        if isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, tensor in tensors.items():
        stored = _permuted(name, tensor) if permuted else tensor
        dtype = GGMLQuantizationType[kind if tensor.ndim > 1 else "F32"]
        writer.add_tensor(_name(name), quantize(stored.contiguous().numpy(), dtype), raw_dtype=dtype)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(f"{theirs}.", f"{ours}.")
    return name


def _permuted(name: str, tensor: Tensor) -> Tensor:
    """Q and K with the rows of each head's two halves taken in turns."""
    heads = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
