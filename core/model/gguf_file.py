"""Reading a GGUF file: its metadata, its tensors under Hugging Face's names, and the config that describes them.

llama.cpp's files keep what `config.json` says under other keys, and store some tensors in another order. Both are
undone here, for the architectures of `ARCHITECTURES`; anything else in the file is refused by name, since leaving it
out would change the answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ModelError

if TYPE_CHECKING:
    import torch
    from gguf import ReaderTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFArchitecture:
    """How files of one `general.architecture` map to Hugging Face's models."""

    model_class: str
    model_type: str
    interleaved: bool = False
    """Rows of Q and K are stored in pairs for llama.cpp's rotary order, not in halves."""
    config: tuple[tuple[str, Any], ...] = ()
    """Config entries that the file does not state."""


ARCHITECTURES = {
    "llama": GGUFArchitecture(model_class="LlamaForCausalLM", model_type="llama", interleaved=True),
    "qwen2": GGUFArchitecture(model_class="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen3": GGUFArchitecture(model_class="Qwen3ForCausalLM", model_type="qwen3"),
    "smollm3": GGUFArchitecture(
        model_class="SmolLM3ForCausalLM",
        model_type="smollm3",
        interleaved=True,
        config=(("no_rope_layer_interval", 4),),
    ),
}

SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_local_experts",
}
"""GGUF key below the architecture → field of `config.json`."""

OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies; Llama 3 files carry their RoPE scaling this way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of the file, under the name and in the order that Hugging Face gives it."""

    name: str
    shape: tuple[int, ...]
    raw: ReaderTensor
    permuted_heads: int = 0
    """Heads whose rows are put back from pairs into halves; 0 leaves the rows alone."""

    @property
    def element_bytes(self) -> int:
        """Bytes an element takes once converted: 16-bit floats stay, all else becomes float32."""
        return 2 if self.raw.tensor_type.name in ("F16", "BF16") else 4

    @property
    def nbytes(self) -> int:
        """Bytes of the converted tensor."""
        return int(np.prod(self.shape)) * self.element_bytes

    def load(self) -> torch.Tensor:
        """The tensor, dequantised to float32, or as float16 or bfloat16 where it is stored so."""
        import torch
        from gguf import dequantize

        kind = self.raw.tensor_type.name
        data = np.array(self.raw.data)
        if kind == "BF16":
            tensor = torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
        elif kind == "F16":
            tensor = torch.from_numpy(data)
        else:
            tensor = torch.from_numpy(dequantize(data, self.raw.tensor_type).astype(np.float32, copy=False))
        tensor = tensor.reshape(self.shape)
        if self.permuted_heads:
            pairs = tensor.reshape(self.permuted_heads, -1, 2, *self.shape[1:])
            tensor = pairs.transpose(1, 2).reshape(self.shape)
        return tensor.contiguous()


class GGUFFile:
    """An open GGUF file. Raises `ModelError` where the file is damaged or holds what is not supported."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise ModelError(f"{path}: not a readable GGUF file ({error}); download it again") from error
        name = self.get("general.architecture")
        if name not in ARCHITECTURES:
            raise ModelError(
                f"{path}: GGUF architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
            )
        self._prefix: str = name
        self.architecture = ARCHITECTURES[name]

    def get(self, key: str, default: Any = None) -> Any:
        """Value of the metadata field `key`, or `default` where the file has none."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """Value of the metadata field `key`; raises `ModelError` where the file has none."""
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.path}: metadata field {key!r} is missing")
        return value

    def config(self) -> dict[str, Any]:
        """What `config.json` of this model says."""
        config: dict[str, Any] = {
            "architectures": [self.architecture.model_class],
            "model_type": self.architecture.model_type,
            "hidden_act": "silu",
            "dtype": self._dtype(),
            **dict(self.architecture.config),
        }
        for key, field in SIZES.items():
            value = self.get(f"{self._prefix}.{key}")
            if isinstance(value, list):
                if len(set(value)) > 1:
                    raise ModelError(f"{self.path}: {key} differs between layers ({value}), which is not supported")
                value = value[0]
            if value:
                config[field] = value
        config.setdefault("vocab_size", len(self.require("tokenizer.ggml.tokens")))
        if "head_dim" not in config:
            hidden = self.require(f"{self._prefix}.embedding_length")
            config["head_dim"] = hidden // self.require(f"{self._prefix}.attention.head_count")
        config["rms_norm_eps"] = _shortest(self.require(f"{self._prefix}.attention.layer_norm_rms_epsilon"))
        config["rope_parameters"] = self._rope(config["head_dim"])
        config["tie_word_embeddings"] = not any(t.name == "output.weight" for t in self._reader.tensors)
        config["attention_bias"] = any(t.name.endswith("attn_q.bias") for t in self._reader.tensors)
        for name in ("bos", "eos", "padding"):
            config[f"{name[:3]}_token_id"] = self.get(f"tokenizer.ggml.{name}_token_id")
        return config

    def tensors(self) -> Iterator[StoredTensor]:
        """Every tensor of the model, in the file's order."""
        heads = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
        for raw in self._reader.tensors:
            if raw.name == ROPE_FACTORS:
                continue
            name, part = self._translate(raw.name)
            key = heads.get(part) if self.architecture.interleaved else None
            yield StoredTensor(
                name=name,
                shape=tuple(int(size) for size in reversed(raw.shape)),
                raw=raw,
                permuted_heads=self.require(f"{self._prefix}.{key}") if key else 0,
            )

    def _translate(self, name: str) -> tuple[str, str]:
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        if match:
            layer, part, kind = match.groups()
            known = OUTER_TENSORS if layer is None else LAYER_TENSORS
            if part in known:
                return f"{'' if layer is None else f'model.layers.{layer}.'}{known[part]}.{kind}", part
        raise ModelError(f"{self.path}: tensor {name!r} is not part of a {self._prefix} model as supported here")

    def _dtype(self) -> str:
        kinds = {t.tensor_type.name for t in self._reader.tensors if len(t.shape) > 1}
        return {"F16": "float16", "BF16": "bfloat16"}.get("".join(kinds), "float32")

    def _rope(self, head_dim: int) -> dict[str, Any]:
        read = f"{self._prefix}.rope."
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(self.get(read + "freq_base", 10000.0))}
        rope["partial_rotary_factor"] = self.get(read + "dimension_count", head_dim) / head_dim
        kind = self.get(read + "scaling.type", "none")
        if kind not in ("none", "linear", "yarn"):
            raise ModelError(f"{self.path}: RoPE scaling {kind!r} is not supported; supported are none, linear, yarn")
        if kind != "none":
            rope |= {"rope_type": kind, "factor": float(self.require(read + "scaling.factor"))}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = self.require(read + "scaling.original_context_length")
        factors = [t for t in self._reader.tensors if t.name == ROPE_FACTORS]
        if factors:
            rope |= {"rope_type": "divisors", "divisors": factors[0].data.tolist()}
        return rope


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: files store 1e-05 as 9.99999974e-06."""
    return float(str(np.float32(value)))


def shards(tensors: Sequence[StoredTensor], limit: int) -> list[list[StoredTensor]]:
    """`tensors` cut, in order, into runs of at most `limit` bytes each; a larger tensor stands alone."""
    parts: list[list[StoredTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if parts[-1] and size + tensor.nbytes > limit:
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += tensor.nbytes
    return parts
