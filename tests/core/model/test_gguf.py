"""GGUF files become the Hugging Face model they were made from: weights, config and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from headstock.core.errors import ModelError
from headstock.core.model import convert, read_config
from headstock.core.model.convert import convert_gguf
from headstock.core.model.progress import silent
from support.gguf import CONFIG, TOKENS, write_gguf
from support.model import load, logits_of, tensors_of, write_model

ARCHITECTURES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", True, {}),
    "qwen2": ("Qwen2ForCausalLM", False, {"tokenizer.ggml.pre": "qwen2"}),
    "qwen3": ("Qwen3ForCausalLM", False, {"tokenizer.ggml.pre": "qwen2"}),
    "smollm3": ("SmolLM3ForCausalLM", True, {"tokenizer.ggml.pre": "llama-bpe"}),
}


def converted(tmp_path: Path, tensors: dict[str, torch.Tensor] | None = None, **options: Any) -> Path:
    """The folder that a GGUF file with these tensors and options turns into."""
    folder = tmp_path / "converted"
    folder.mkdir()
    path = write_gguf(tmp_path / "tiny.gguf", tensors_of(CONFIG) if tensors is None else tensors, **options)
    convert_gguf(path, folder, silent)
    return folder


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_model_is_the_one_it_was_made_from(arch: str, tied: bool, tmp_path: Path) -> None:
    name, permuted, metadata = ARCHITECTURES[arch]
    config = {**CONFIG, "architectures": [name], "tie_word_embeddings": tied, "rope_theta": 10000.0}
    (tmp_path / "original").mkdir()
    tensors = write_model(tmp_path / "original", config)
    folder = converted(tmp_path, tensors, arch=arch, permuted=permuted, **metadata)
    back = load_file(folder / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    text = [[3, 1, 4, 1, 5, 9, 2, 6]]
    assert torch.equal(logits_of(load(folder), text), logits_of(load(tmp_path / "original"), text))


def unpacked(kind: str, stored: np.ndarray) -> np.ndarray:
    """Blocks of 32 values, as ggml's own description of the format says."""
    blocks = stored.reshape(-1, {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        return scale * blocks[:, 2:].view(np.int8)
    nibbles = blocks[:, -16:]
    values = np.concatenate([nibbles & 15, nibbles >> 4], axis=1).astype(np.float32)
    if kind == "Q4_0":
        return scale * (values - 8)
    return scale * values + blocks[:, 2:4].copy().view(np.float16).astype(np.float32)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantised_weights_become_the_numbers_they_stand_for(kind: str, tmp_path: Path) -> None:
    from gguf import GGUFReader

    folder = converted(tmp_path, kind=kind)
    stored = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "tiny.gguf").tensors}
    weights = load_file(folder / "model.safetensors")
    for ours, theirs in (("model.embed_tokens", "token_embd"), ("model.layers.1.mlp.down_proj", "blk.1.ffn_down")):
        expected = unpacked(kind, stored[f"{theirs}.weight"])
        assert np.array_equal(weights[f"{ours}.weight"].numpy().ravel(), expected.ravel())
    assert read_config(folder).dtype == "float32"


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_16_bit_weights_stay_as_they_are(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    weights = load_file(converted(tmp_path, tensors, kind=kind) / "model.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(weights[name], tensor.to(dtype) if tensor.ndim > 1 else tensor)
    assert read_config(tmp_path / "converted").dtype == str(dtype).removeprefix("torch.")


def test_the_config_says_what_the_metadata_said(tmp_path: Path) -> None:
    config = read_config(converted(tmp_path))
    assert (config.rms_norm_eps, config.rope.theta, config.max_position) == (1e-5, 10000.0, 64)
    assert (config.head_size, config.num_kv_heads, config.eos_token_ids) == (8, 2, (2,))


def test_a_large_file_is_cut_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SHARD_BYTES", 20_000)
    tensors = tensors_of(CONFIG)
    folder = converted(tmp_path, tensors)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert max(path.stat().st_size for path in files) < 40_000
    text = [[3, 1, 4]]
    (tmp_path / "original").mkdir()
    write_model(tmp_path / "original", CONFIG)
    assert torch.equal(logits_of(load(folder), text), logits_of(load(tmp_path / "original"), text))


def test_progress_grows_to_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    (tmp_path / "out").mkdir()
    path = write_gguf(tmp_path / "tiny.gguf", tensors_of(CONFIG))
    convert_gguf(path, tmp_path / "out", lambda task, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert [done == total for done, total in seen].count(True) == 1


def test_rope_scaling_by_divisors_is_kept(tmp_path: Path) -> None:
    rope = read_config(converted(tmp_path, extra={"rope_freqs.weight": torch.tensor([1.0, 1.0, 4.0, 8.0])})).rope
    assert (rope.kind, rope.divisors) == ("divisors", (1.0, 1.0, 4.0, 8.0))


def test_rope_scaling_by_a_factor_is_kept(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    rope = read_config(converted(tmp_path, **{f"rope.scaling.{k}": v for k, v in scaling.items()})).rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 16)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"arch": "gemma3"}, r"GGUF architecture 'gemma3' is not supported; supported are llama, "),
        ({"extra": {"blk.0.ssm_a.weight": torch.zeros(2)}}, r"tensor 'blk.0.ssm_a.weight' is not part of a llama"),
        ({"rope.scaling.type": "longrope"}, "RoPE scaling 'longrope' is not supported"),
        ({"rope.dimension_count": 4}, "partial_rotary_factor' is 0.5"),
        ({"expert_count": 8}, "layer 0 of LlamaForCausalLM is of kind 'mixture of experts'"),
        ({"block_count": ...}, "field 'num_hidden_layers' is missing"),
        ({"attention.layer_norm_rms_epsilon": ...}, "metadata field 'llama.attention.layer_norm_rms_epsilon' is miss"),
        ({"tokenizer.ggml.tokens": ...}, "metadata field 'tokenizer.ggml.tokens' is missing"),
        ({"tokenizer.ggml.pre": "klingon"}, r"(?s)pre-tokenizer 'klingon' is not supported.*Hugging Face folder"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' with pre-tokenizer"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=problem) as error:
        converted(tmp_path, **options)
    assert str(error.value).startswith(str(tmp_path / "tiny.gguf"))
    assert not list((tmp_path / "converted").glob("*.safetensors"))


@pytest.mark.parametrize("keep", [0, 3, 30, 2000, 20000])
def test_a_file_that_was_cut_short_is_named(keep: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tensors_of(CONFIG))
    path.write_bytes(path.read_bytes()[:keep])
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=r"tiny.gguf: not a readable GGUF file"):
        convert_gguf(path, tmp_path / "out", silent)


def tokenizer(tmp_path: Path, **metadata: Any) -> Tokenizer:
    return Tokenizer.from_file(str(converted(tmp_path, **metadata) / "tokenizer.json"))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text).tokens


def test_smollm_cuts_numbers_into_digits(tmp_path: Path) -> None:
    assert "12" in TOKENS
    made = tokenizer(tmp_path)
    assert pieces(made, "the 12") == ["the", "Ġ", "1", "2"]
    assert pieces(made, "the\n\n") == ["the", "ĊĊ"]
    assert pieces(made, "\n\nthe") == ["Ċ", "Ċ", "the"]  # a line break before a word is a piece of its own


def test_gpt2_merges_digits(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.pre": "gpt-2"}
    assert pieces(tokenizer(tmp_path, **metadata), "the 12") == ["the", "Ġ", "12"]


def test_control_tokens_and_whole_words_are_not_cut(tmp_path: Path) -> None:
    made = tokenizer(tmp_path)
    assert pieces(made, "<|im_start|>the<think>") == ["<|im_start|>", "the", "<think>"]
    assert made.encode("<|im_end|><think>").ids == [2, len(TOKENS) - 1]
    assert made.decode([2, len(TOKENS) - 1]) == "<think>"
    assert made.get_vocab_size() == len(TOKENS)


def test_every_text_comes_back(tmp_path: Path) -> None:
    made = tokenizer(tmp_path)
    for text in (" leading", "tab\tand\r\nbreak", "naïve 日本 🚀", "3.14 + 2"):
        assert made.decode(made.encode(text).ids) == text


def test_qwen_composes_characters(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, **{"tokenizer.ggml.pre": "qwen2"})
    assert made.encode("e\u0301").ids == made.encode("\u00e9").ids


@pytest.mark.parametrize(
    ("metadata", "starts"),
    [
        ({"tokenizer.ggml.pre": "smollm"}, False),
        ({"tokenizer.ggml.pre": "smollm", "tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_a_start_token_is_added_where_the_file_asks_for_it(
    metadata: dict[str, Any], starts: bool, tmp_path: Path
) -> None:
    ids = tokenizer(tmp_path, **metadata).encode("the").ids
    assert ids == [1, TOKENS.index("the")][not starts :]


def test_the_chat_template_and_the_true_length_are_kept(tmp_path: Path) -> None:
    config = json.loads((converted(tmp_path) / "tokenizer_config.json").read_text())
    assert config["chat_template"].startswith("{% for m in messages %}")
    assert config["model_max_length"] == 64
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
