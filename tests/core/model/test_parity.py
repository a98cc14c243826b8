"""The decoder computes what transformers computes, for every architecture and everything a config can turn on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from support.model import load, logits_of

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
ALTERNATING = ["sliding_attention", "full_attention"] * 2

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, yarn rope": ("Llama", {"rope_parameters": YARN_ROPE}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama, dynamic rope": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "llama, biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, heads wider than hidden": ("Llama", {"head_dim": 16}),
    "llama, one kv head": ("Llama", {"num_key_value_heads": 1}),
    "llama, a kv head for each query head": ("Llama", {"num_key_value_heads": 6}),
    "mistral, window of 5": ("Mistral", {"sliding_window": 5}),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "ministral, every other layer windowed": (
        "Ministral",
        {"head_dim": 8, "sliding_window": 5, "layer_types": ALTERNATING},
    ),
    "qwen2, biased": ("Qwen2", {}),
    "qwen2, windows from layer 2 on": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "qwen2, window not in use": ("Qwen2", {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3, normed heads": ("Qwen3", {"head_dim": 16}),
    "qwen3, biased and tied": ("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    "smollm3, last layer without rope": ("SmolLM3", {}),
    "smollm3, listed layers without rope": ("SmolLM3", {"no_rope_layers": [0, 1, 0, 1], "tie_word_embeddings": False}),
    "smollm3, windows where there is no rope": (
        "SmolLM3",
        {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1, 0]},
    ),
    "granite, four multipliers": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.25,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
}


def random_model(kind: str, changes: dict[str, Any], folder: Path) -> Any:
    """A transformers model with random weights, norms and biases included, saved to `folder`."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes}, attn_implementation="eager")
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


TEXTS = [[(7 * i + 3) % 97 for i in range(23)], [5], [(11 * i) % 97 for i in range(1, 9)]]


def expected(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([text])).logits[0] for text in TEXTS])


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = expected(random_model(*CASES[case], tmp_path))
    ours = logits_of(load(tmp_path), TEXTS)
    assert (ours - theirs).abs().max() <= 1e-5 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes_keep_their_precision(dtype: str, tmp_path: Path) -> None:
    model = random_model("Qwen3", {"head_dim": 16}, tmp_path)
    exact = expected(model.double())
    ours = logits_of(load(tmp_path, dtype), TEXTS)
    assert ours.dtype == getattr(torch, dtype)
    error = (ours.double() - exact).abs().max() / exact.abs().max()
    assert error < {"float64": 1e-6, "float16": 0.02, "bfloat16": 0.1}[dtype]


def test_rope_as_transformers_4_wrote_it_means_the_same(tmp_path: Path) -> None:
    theirs = expected(random_model("Llama", {"rope_parameters": LLAMA3_ROPE}, tmp_path))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config))
    assert (logits_of(load(tmp_path), TEXTS) - theirs).abs().max() <= 1e-4


def test_a_sharded_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    model = random_model("Llama", {}, tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="40KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert torch.equal(logits_of(load(tmp_path / "parts"), TEXTS), logits_of(load(tmp_path / "whole"), TEXTS))


def test_a_tied_output_projection_shares_the_embedding(tmp_path: Path) -> None:
    random_model("Llama", {"tie_word_embeddings": True}, tmp_path)
    model = load(tmp_path)
    assert model.embed_tokens.data_ptr() == model.lm_head.weight.data_ptr()
    assert sum(p.numel() for p in model.parameters()) == model.config.num_parameters


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_counted_without_loading(case: str, tmp_path: Path) -> None:
    random_model(*CASES[case], tmp_path)
    model = load(tmp_path)
    assert model.config.num_parameters == sum(p.numel() for p in model.parameters())
