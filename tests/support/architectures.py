"""Small random models of many architectures, made and answered by transformers, to hold ours against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from headstock.core.model import ModelFolder

from .vocabularies import byte_level

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 16, "query_pre_attn_scalar": 10, **MIXED}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": 16, **MIXED}),
    "gpt-oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, **MIXED},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"sliding_window": 6}),
    "phi3, longrope": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": 6}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT),
    "opt": ("OPTConfig", "OPTForCausalLM", {"word_embed_proj_dim": 64, "ffn_dim": 96}),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", {**MIXED, "logit_scale": 0.5}),
    "deepseek-v3, expanded latent": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 24,
        },
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"n_layer": 2, "n_head": 6, "hidden_size": 96}),
    "mpt": ("MptConfig", "MptForCausalLM", {"d_model": 96, "n_heads": 6, "n_layers": 2, "max_seq_len": 128}),
    # transformers 5.24 adds Falcon's ALiBi twice in its eager form, once with the mask; its sdpa form is right.
    "falcon, alibi": ("FalconConfig", "FalconForCausalLM", {"alibi": True, "attn_implementation": "sdpa"}),
    "falcon, rope and grouped heads": (
        "FalconConfig",
        "FalconForCausalLM",
        {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
}
"""Name → class of the config, class of the model, and what differs from `SIZES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """A model of transformers' and the folder it was saved to."""

    theirs: Any
    folder: ModelFolder


def random_model(name: str, path: Path, **changes: Any) -> RandomModel:
    """The architecture `name` with random weights, norms and biases included, and a tokenizer."""
    kind, cls, own = ARCHITECTURES[name]
    return save_random(kind, cls, path, **{**own, **changes})


def save_random(config_class: str, model_class: str, path: Path, **changes: Any) -> RandomModel:
    """A model of these classes with random weights, saved to `path`."""
    config = getattr(transformers, config_class)(**{**SIZES, "attn_implementation": "eager", **changes})
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in weight_name or "ln_" in weight_name else 0.0, 0.2)
        model.tie_weights()
    model.save_pretrained(path)
    byte_level().save(str(path / "tokenizer.json"))
    return RandomModel(theirs=model, folder=ModelFolder(name=model_class, path=path, origin="made by a test"))


def log_probabilities(model: Any, tokens: Sequence[int]) -> Tensor:
    """transformers' (tokens, vocabulary) for one text, computed in one piece."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].float(), -1)


ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", {}),
    "bert, with a head for masked words": ("BertConfig", "BertForMaskedLM", {}),
    "roberta": ("RobertaConfig", "RobertaModel", {"pad_token_id": 1, "bos_token_id": 0}),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", {"pad_token_id": 1, "bos_token_id": 0}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}),
    "electra": ("ElectraConfig", "ElectraModel", {"embedding_size": 64}),
    "albert, one layer many times": ("AlbertConfig", "AlbertModel", {"embedding_size": 32}),
    "nomic-bert": ("NomicBertConfig", "NomicBertModel", {}),
}
"""The same for models that do not generate."""


def random_encoder(name: str, path: Path, **changes: Any) -> RandomModel:
    """The encoder `name` with random weights, norms and biases included, and a tokenizer."""
    kind, cls, own = ENCODERS[name]
    return save_random(kind, cls, path, **own, **changes)


def hidden_states(model: Any, tokens: Sequence[int]) -> Tensor:
    """transformers' final hidden states (tokens, hidden) of one text, computed by itself."""
    with torch.inference_mode():
        return model.base_model(torch.tensor([list(tokens)]))[0][0].float()


def say_pooling(folder: Path, *, normalize: bool = False, max_tokens: int | None = None, **config: Any) -> None:
    """Write the files with which sentence-transformers says how a text becomes a vector."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **config}))
    if max_tokens is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
