"""Models that run through transformers' code answer as transformers does: ragged, by chunks, from the cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headstock.backends.reference import ReferenceBackend
from headstock.core.errors import InvalidInput, ModelError
from headstock.core.model import describe_model, load_model
from headstock.core.model.borrowed.trace import Mask, read_mask
from headstock.core.outputs import RequestOutput
from headstock.core.params import SamplingParams
from support.architectures import (
    ARCHITECTURES,
    GPT,
    SIZES,
    VISION,
    RandomModel,
    log_probabilities,
    random_model,
    save_random,
)
from support.engine import FixedProvider
from support.serving import answers as serve
from support.tiny import tiny_engine

PROMPTS = [
    [(7 * i + 3) % 90 + 5 for i in range(19)],
    [8],
    [(11 * i) % 90 + 5 for i in range(1, 9)],
    [(7 * i + 3) % 90 + 5 for i in range(15)],
]
"""Ragged, of which the last begins as the first does."""
ANSWER = 6


def engine_over(model: RandomModel, **config: Any) -> Any:
    """Steps of 8 tokens, so that prompts come in chunks beside others' answers; blocks of 4."""
    settings = {"max_num_batched_tokens": 8, "block_size": 4, "dtype": "float32", **config}
    return tiny_engine(model.folder, FixedProvider(ReferenceBackend), model_impl="transformers", **settings)


def answers(engine: Any, prompts: Sequence[Sequence[int]]) -> list[RequestOutput]:
    return serve(engine, prompts, SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, logprobs=1))


def assert_as_transformers(model: Any, prompt: Sequence[int], output: RequestOutput) -> None:
    """Every token is the likeliest in transformers too, with the same log probability."""
    tokens = list(output.outputs[0].token_ids)
    theirs = log_probabilities(model, [*prompt, *tokens])[len(prompt) - 1 : -1]
    assert tokens == theirs.argmax(-1).tolist()
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    assert len(tokens) == ANSWER
    ours = torch.tensor([entry[token].logprob for entry, token in zip(logprobs, tokens, strict=True)])
    assert (ours - theirs.amax(-1)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = random_model(name, tmp_path)
    engine = engine_over(model)
    for _ in range(2):  # the second time mostly from the cache
        for prompt, output in zip(PROMPTS, answers(engine, PROMPTS), strict=True):
            assert_as_transformers(model.theirs, prompt, output)
    stats = engine.core.stats()
    assert stats.prefix_cache.num_hit_tokens > 30
    assert stats.num_mixed_steps > 0


def test_a_model_with_eyes_answers_text(tmp_path: Path) -> None:
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "sliding_window": 5}
    special = {"image_token_index": 90, "boi_token_index": 91, "eoi_token_index": 92, "mm_tokens_per_image": 4}
    model = save_random(
        "Gemma3Config", "Gemma3ForConditionalGeneration", tmp_path, text_config=text, vision_config=VISION, **special
    )
    prompt = [token % 80 for token in PROMPTS[0]]
    (output,) = answers(engine_over(model), [prompt])
    assert_as_transformers(model.theirs, prompt, output)


def test_models_we_define_ourselves_can_run_so_too(tmp_path: Path) -> None:
    model = random_model("llama", tmp_path)
    assert describe_model(tmp_path).implementation == "headstock"
    borrowed = describe_model(tmp_path, "transformers")
    assert borrowed.implementation == f"transformers {transformers.__version__}"
    own = describe_model(tmp_path, "headstock")
    specs = [list(model.attention_specs("float32").values()) for model in (own, borrowed)]
    assert specs[0] == specs[1]
    assert borrowed.weight_bytes("float32") == own.weight_bytes("float32")
    assert borrowed.lookup_bytes("float32") == own.lookup_bytes("float32")
    assert borrowed.max_position == own.max_position == 128
    assert model.theirs.num_parameters() * 4 == borrowed.weight_bytes("float32")


def test_tied_weights_count_once_and_idle_experts_are_not_used(tmp_path: Path) -> None:
    gpt2 = describe_model(random_model("gpt2", tmp_path / "gpt2").folder.path)
    assert gpt2.lookup_bytes("bfloat16") == 2 * 64 * 128  # the positions: the embedding is the output projection
    mixtral = describe_model(random_model("mixtral", tmp_path / "mixtral").folder.path)
    expert = 3 * 64 * 96
    assert mixtral.lookup_bytes("float32") == 4 * (97 * 64 + 2 * 2 * expert)  # two layers, two of four experts each
    assert mixtral.flops_per_token() == 2 * (mixtral.weight_bytes("float32") - mixtral.lookup_bytes("float32")) // 4


def test_weights_come_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    model = random_model("olmo2", tmp_path)
    description = describe_model(tmp_path)
    for dtype in ("bfloat16", "float64"):
        loaded: Any = load_model(description, model.folder, dtype, "cpu", description.attention_specs(dtype))
        assert {p.dtype for p in loaded.parameters()} == {getattr(torch, dtype)}
        assert not any(p.requires_grad for p in loaded.parameters())


def test_texts_end_where_longrope_would_turn_otherwise(tmp_path: Path) -> None:
    assert describe_model(random_model("phi3, longrope", tmp_path).folder.path).max_position == 64


def test_end_tokens_are_those_of_the_generation_config(tmp_path: Path) -> None:
    random_model("gpt2", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert describe_model(tmp_path).eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": "seven"}))
    with pytest.raises(ModelError, match=r"eos_token_id.*not 'seven'"):
        describe_model(tmp_path)


def config_folder(path: Path, kind: str, architecture: str, **changes: Any) -> Path:
    config = getattr(transformers, kind)(**{**SIZES, **changes})
    config.architectures = [architecture]
    config.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("kind", "architecture", "reason"),
    [
        ("DiffLlamaConfig", "DiffLlamaForCausalLM", r"layers.0.self_attn \(DiffLlamaAttention\) calls attention twice"),
        ("Llama4TextConfig", "Llama4ForCausalLM", "layer 0 of Llama4ForCausalLM is of kind 'chunked_attention'"),
        ("JambaConfig", "JambaForCausalLM", "of kind 'mamba', which is not supported"),
        ("BambaConfig", "BambaForCausalLM", "keep a state beside the KV cache|of kind 'mamba'"),
        ("Lfm2Config", "Lfm2ForCausalLM", "cannot be traced without its weights"),
        ("GPTNeoConfig", "GPTNeoForCausalLM", r"0 of them call attention through transformers' AttentionInterface"),
        ("BertConfig", "BertLMHeadModel", "does not attend causally, so it cannot generate"),
        ("T5Config", "T5ForConditionalGeneration", "architecture T5ForConditionalGeneration is not supported"),
        ("GPT2Config", "FooForCausalLM", "FooForCausalLM is not supported.* it may give texts vectors"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(kind: str, architecture: str, reason: str, tmp_path: Path) -> None:
    more = {"attention_types": [[["global", "local"], 1]]} if kind == "GPTNeoConfig" else {}
    with pytest.raises(ModelError, match=f"(?s){reason}"):
        describe_model(config_folder(tmp_path, kind, architecture, **more))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quantization_config": {"quant_method": "mxfp4"}}, r"quantised \(mxfp4\), which is not read"),
        ({"num_attention_heads": 5}, "has 5 query heads, no multiple of its 2 KV heads"),
        ({"num_hidden_layers": "two"}, "transformers does not accept this config"),
        ({"num_hidden_layers": 0}, "has no layers"),
        ({"vocab_size": -3}, "transformers cannot build this model"),
        ({"architectures": "GptOssForCausalLM"}, "field 'architectures' must be a list of names"),
        ({"model_type": "no-such"}, "transformers does not accept this config"),
        ({"eos_token_id": "end"}, "transformers does not accept|eos_token_id"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_a_wrong_config_is_one_clear_message(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config_folder(tmp_path, "Olmo2Config", "Olmo2ForCausalLM")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=reason):
        describe_model(tmp_path, "transformers")


def test_an_unknown_implementation_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be one of auto, headstock, transformers, not 'vllm'"):
        describe_model(tmp_path, "vllm")


def test_what_our_own_definition_lacks_is_refused_with_who_can_run_it(tmp_path: Path) -> None:
    model = random_model("llama", tmp_path, hidden_act="gelu")
    with pytest.raises(ModelError, match=r"(?s)hidden_act.*can run it: --model-impl transformers"):
        describe_model(tmp_path)
    prompt = PROMPTS[0]
    (output,) = answers(engine_over(model), [prompt])
    assert_as_transformers(model.theirs, prompt, output)


def test_our_own_definitions_do_not_reach_for_transformers(tmp_path: Path) -> None:
    config_folder(tmp_path, "GPT2Config", "GPT2LMHeadModel", **GPT)
    with pytest.raises(ModelError, match="GPT2LMHeadModel is not supported"):
        describe_model(tmp_path, "headstock")


def patched(monkeypatch: pytest.MonkeyPatch, cls: str, **more: Any) -> None:
    """Let Olmo2's `cls` be called with `more`, which its attention passes on."""
    target = getattr(transformers.models.olmo2.modeling_olmo2, cls)
    forward = target.forward
    monkeypatch.setattr(target, "forward", lambda self, *args, **kw: forward(self, *args, **{**kw, **more}))


def test_an_argument_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config_folder(tmp_path, "Olmo2Config", "Olmo2ForCausalLM")
    patched(monkeypatch, "Olmo2Attention", position_bias=torch.zeros(2, 3), nothing=None)
    with pytest.raises(ModelError, match=r"calls attention with position_bias = a tensor of shape \(2, 3\)"):
        describe_model(tmp_path)


def test_sinks_that_are_no_parameter_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config_folder(tmp_path, "Olmo2Config", "Olmo2ForCausalLM")
    patched(monkeypatch, "Olmo2Attention", s_aux=torch.zeros(4))
    with pytest.raises(ModelError, match="computes its sinks"):
        describe_model(tmp_path)


def test_a_window_without_its_mask_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config_folder(tmp_path, "Olmo2Config", "Olmo2ForCausalLM")
    patched(monkeypatch, "Olmo2Attention", sliding_window=5)
    with pytest.raises(ModelError, match="has a window of 5 keys, and a mask with a window of None"):
        describe_model(tmp_path)


def test_attention_that_changes_after_the_trace_is_an_error(tmp_path: Path) -> None:
    model = random_model("gemma3", tmp_path)
    engine = engine_over(model)
    layer = engine.core.worker.runner._model.model.model.layers[0].self_attn
    layer.scaling *= 2
    with pytest.raises(ModelError, match=r"layers.0.self_attn calls attention with .* when the model was traced"):
        answers(engine, [[5, 6, 7]])


def test_tokens_that_meet_outside_of_attention_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = random_model("olmo2", tmp_path)
    target = transformers.models.olmo2.modeling_olmo2.Olmo2MLP
    forward = target.forward
    monkeypatch.setattr(target, "forward", lambda self, x: forward(self, x + x.roll(1, dims=1)))
    with pytest.raises(ModelError, match="tokens of Olmo2ForCausalLM reach others outside of attention"):
        engine_over(model)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"1 tensors are missing .*layers.1.mlp.up_proj.weight"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            r"1 tensors have another shape .*model.norm.weight",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(edit: Any, reason: str, tmp_path: Path) -> None:
    model = random_model("olmo2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=reason):
        engine_over(model)


def test_files_that_are_damaged_or_pickled_are_refused(tmp_path: Path) -> None:
    model = random_model("olmo2", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load the weights"):
        engine_over(model)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="only as pickle"):
        engine_over(model)


MASKS: dict[str, tuple[Any, int | None, Mask]] = {
    "causal": (lambda b, h, q, k: k <= q, None, Mask(causal=True, window=None)),
    "window of 5": (lambda b, h, q, k: (k <= q) & (k > q - 5), 5, Mask(causal=True, window=5)),
    "window of 4096": (lambda b, h, q, k: (k <= q) & (k > q - 4096), 4096, Mask(causal=True, window=4096)),
    "all": (lambda b, h, q, k: q >= 0, None, Mask(causal=False, window=None)),
    "within 4 to both sides": (lambda b, h, q, k: (q - k).abs() <= 4, 4, Mask(causal=False, window=5)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_read_off_what_they_let_be_seen(name: str) -> None:
    function, size, expected = MASKS[name]
    assert read_mask(function, size, "config.json") == expected


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda b, h, q, k: (k <= q) & (q // 1000 == k // 1000), None),
        (lambda b, h, q, k: (k <= q) & (q // 64 == k // 64), 64),
        (lambda b, h, q, k: (k <= q) & (k > q - 4), 5),
        (lambda b, h, q, k: (k <= q) | (k < 7), None),
        (lambda b, h, q, k: (k <= q) & (k != 2), None),
    ],
    ids=["chunks of 1000", "chunks of 64", "a window that is not as stated", "a prefix", "a hole"],
)
def test_other_masks_are_refused(function: Any, size: int | None) -> None:
    with pytest.raises(ModelError, match=r"config.json: its attention mask .*is neither causal, windowed nor bidirect"):
        read_mask(function, size, "config.json")
