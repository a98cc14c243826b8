"""Configs: what is read, what follows from it without weights, and what is refused, each by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstock.core.attention import Device
from headstock.core.errors import InvalidInput, ModelError
from headstock.core.model import parse_config, read_config, resolve_dtype
from headstock.core.model.config import layer_name

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
QWEN35: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "image_token_id": 248056,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_conv_kernel_dim": 4,
        "linear_num_value_heads": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "vocab_size": 248320,
    },
    "vision_config": {"model_type": "qwen3_5_vision", "depth": 27},
}


def config(**changes: Any) -> dict[str, Any]:
    """SmolLM2's config with these fields changed, or left out where the value is `...`."""
    return {name: value for name, value in {**SMOLLM2, **changes}.items() if value is not ...}


def test_sizes_follow_from_the_config() -> None:
    model = parse_config(SMOLLM2)
    assert model.num_parameters == 134_515_008
    assert model.weight_bytes("float32") == 538_060_032
    assert model.weight_bytes("bfloat16") == 269_030_016
    assert model.kv_bytes_per_token("float32") == 30 * 2 * 3 * 64 * 4
    assert model.kv_bytes_per_token("float32", kv_format="fp8_e4m3") == 30 * 2 * 3 * 64
    assert model.flops_per_token() == 2 * (model.num_parameters - 61 * 576)
    assert model.flops_per_token(1000) - model.flops_per_token() == 30 * 4 * 1000 * 9 * 64


def test_a_window_bounds_the_work_of_a_token() -> None:
    model = parse_config(config(architectures=["MistralForCausalLM"], sliding_window=100))
    assert model.flops_per_token(1000) == model.flops_per_token(100) > model.flops_per_token(99)


def test_every_layer_has_a_spec() -> None:
    specs = parse_config(SMOLLM2).attention_specs("float32", block_size=32)
    assert list(specs) == [layer_name(i) for i in range(30)]
    (spec,) = set(specs.values())
    assert (spec.num_heads, spec.num_kv_heads, spec.head_size, spec.block_size) == (9, 3, 64, 32)
    assert (spec.causal, spec.window, spec.scale, spec.kind) == (True, None, 0.125, "decoder")


def test_a_window_of_w_keys_counts_the_current_one() -> None:
    model = parse_config(config(architectures=["MistralForCausalLM"], sliding_window=4096))
    assert {spec.window for spec in model.attention_specs("float32").values()} == {(4095, 0)}


def test_layers_can_differ() -> None:
    mixed = config(architectures=["Qwen2ForCausalLM"], use_sliding_window=True, sliding_window=64, max_window_layers=28)
    windows = [layer.window for layer in parse_config(mixed).layers]
    assert windows == [None] * 28 + [64] * 2
    rope = [layer.rope for layer in parse_config(config(architectures=["SmolLM3ForCausalLM"])).layers]
    assert rope == [(i + 1) % 4 != 0 for i in range(30)]


def test_ranks_share_kv_heads_in_order() -> None:
    model = parse_config(config(num_attention_heads=8, num_key_value_heads=2, hidden_size=512))
    heads = [model.heads_of_rank(rank, 4) for rank in range(4)]
    assert [list(kv) for _, kv in heads] == [[0], [0], [1], [1]]
    assert [list(q) for q, _ in heads] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    spec = model.attention_specs("float32", tp_size=4)[layer_name(0)]
    assert (spec.num_heads, spec.num_kv_heads) == (2, 1)


@pytest.mark.parametrize(("tp_size", "number"), [(2, "9 query heads"), (0, "9 query heads"), (9, None), (3, None)])
def test_heads_that_do_not_split_are_refused(tp_size: int, number: str | None) -> None:
    model = parse_config(SMOLLM2)
    if number is None:
        assert len(model.heads_of_rank(0, tp_size)[0]) == 9 // tp_size
        return
    with pytest.raises(InvalidInput, match=f"tensor_parallel_size: {number} cannot be split into {tp_size}"):
        model.heads_of_rank(0, tp_size)


def test_kv_heads_that_do_not_split_are_refused() -> None:
    model = parse_config(config(num_attention_heads=12, num_key_value_heads=6, hidden_size=768))
    with pytest.raises(InvalidInput, match="6 KV heads cannot be split into 4"):
        model.heads_of_rank(0, 4)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"hidden_size": ...}, "hidden_size", "is missing"),
        ({"vocab_size": None}, "vocab_size", "is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "from 1 to 10000, not 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "from 1 to 10000, not 1000000000"),
        ({"vocab_size": 2**31}, "vocab_size", "from 1 to 2147483647"),
        ({"hidden_size": 10**300}, "hidden_size", r"from 1 to 2147483647, not 10*\.\.\.$"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps", "must be a finite number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "must be a finite number, not nan"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps", "must be above 0"),
        ({"rope_theta": 0}, "rope_theta", "must be above 0, not 0"),
        ({"layer_types": 5}, "layer_types", "must be a list of 30 kinds, one a layer, not 5"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_scaling.rope_type", r"is \['yarn'\], which is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor", "must be above 0"),
        (
            {"rope_scaling": {"rope_type": "divisors", "divisors": [1.0]}},
            "rope_scaling.divisors",
            "must be a list of 32 numbers",
        ),
        (
            {"rope_scaling": {"rope_type": "divisors", "divisors": [1.0] * 31 + [0]}},
            "rope_scaling.divisors",
            "above 0",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 1.0},
            "rope_scaling.rope_theta",
            "above 1 for yarn",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4}},
            "rope_scaling.low_freq_factor",
            "must be below high_freq_factor",
        ),
        ({"num_hidden_layers": "30"}, "num_hidden_layers", "not '30'"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps", "must be a finite number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "must be true or false"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 4},
            "num_key_value_heads",
            "is 4, .* num_attention_heads = 6",
        ),
        ({"hidden_size": 577}, "hidden_size", "is 577, no multiple of num_attention_heads = 9"),
        ({"head_dim": 63}, "head_dim", "is 63; RoPE needs an even number"),
        ({"hidden_act": "gelu"}, "hidden_act", "is 'gelu'"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype", "is 'float8_e4m3fn'"),
        ({"eos_token_id": "<eos>"}, "eos_token_id", "must be a token id or a list"),
        ({"rope_scaling": "linear"}, "rope_scaling", "must be an object"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope_scaling.rope_type",
            "is 'longrope', which is not supported",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor", "is missing"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters", "differs by layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "is 0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config", r"quantised \(gptq\)"),
        ({"layer_types": ["full_attention"]}, "layer_types", "must be a list of 30 kinds, one a layer, not 1 entries"),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]},
            "no_rope_layers",
            "a list of 30 entries",
        ),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(ModelError, match=f"^folder/config.json: field '{field}' .*{problem}"):
        parse_config(config(**changes), "folder/config.json")


@pytest.mark.parametrize(
    ("unsupported", "layer", "kind"),
    [
        (QWEN35, 0, "linear_attention"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4}, 0, "linear_attention"),
        ({"model_type": "mamba2", "num_hidden_layers": 64}, 0, "mamba2"),
        (
            {"model_type": "jamba", "num_hidden_layers": 8, "attn_layer_period": 8, "attn_layer_offset": 0},
            1,
            "mamba",
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "*-M*"}, 1, "feed-forward only"),
        ({"model_type": "granitemoehybrid", "layers_block_type": ["attention", "mamba"]}, 1, "mamba"),
        ({"model_type": "mixtral", "num_hidden_layers": 32, "num_local_experts": 8}, 0, "mixture of experts"),
        (
            {"num_hidden_layers": 27, "n_routed_experts": 64, "first_k_dense_replace": 1},
            1,
            "mixture of experts",
        ),
        ({"model_type": "deepseek_v2", "num_hidden_layers": 27, "kv_lora_rank": 512}, 0, r"latent attention \(MLA\)"),
        ({**SMOLLM2, "layer_types": ["full_attention"] * 29 + ["chunked_attention"]}, 29, "chunked_attention"),
    ],
)
def test_an_unsupported_layer_is_refused_by_index_and_kind(
    unsupported: dict[str, Any], layer: int, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(unsupported))  # and there are no weights beside it
    with pytest.raises(ModelError, match=rf"config.json: layer {layer} of .* is of kind '{kind}'.*not supported"):
        read_config(tmp_path)


def test_the_layers_that_cannot_run_are_counted() -> None:
    with pytest.raises(ModelError, match=r"linear_attention \(24\); supported are full and sliding-window"):
        parse_config(QWEN35)


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"architecture GPT2LMHeadModel is not supported.\n.*LlamaForCausalLM"):
        parse_config(config(architectures=["GPT2LMHeadModel"]))


def test_code_that_comes_with_a_model_is_never_run() -> None:
    own = config(architectures=["MyModel"], auto_map={"AutoModelForCausalLM": "modeling_my.MyModel"})
    with pytest.raises(ModelError, match=r"auto_map.*never runs"):
        parse_config(own)
    assert parse_config(config(auto_map={"AutoModel": "x.Y"})).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    "odd",
    [
        {"model_type": ["mamba"]},
        {"full_attention_interval": "4"},
        {"attn_layer_period": "8"},
        {"attn_layer_period": 0},
        {"first_k_dense_replace": "1", "num_experts": 8},
        {"num_hidden_layers": 10**12, "num_experts": 8},
    ],
)
def test_odd_values_beside_an_unknown_architecture_are_no_crash(odd: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        parse_config({"architectures": ["NoSuchForCausalLM"], "num_hidden_layers": 4, **odd})


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": ')
    with pytest.raises(ModelError, match=r"config.json: is not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"config.json: is not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(ModelError, match=r"config.json: holds list, not an object"):
        read_config(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json: cannot be read \(No such file"):
        read_config(tmp_path)


def test_end_tokens_come_from_the_generation_config_where_it_names_any(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    assert read_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128001, 128009]}')
    assert read_config(tmp_path).eos_token_ids == (128001, 128009)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read_config(tmp_path).eos_token_ids == (2,)


def cpu(*features: str) -> Device:
    return Device(platform="cpu", name="CPU", arch="x86_64", features=frozenset(features))


H100 = Device(platform="cuda", name="H100", arch="sm_90")


@pytest.mark.parametrize(
    ("asked", "stored", "device", "dtype"),
    [
        ("auto", "bfloat16", cpu("avx2"), "float32"),
        ("auto", "bfloat16", cpu("avx2", "avx512_bf16"), "bfloat16"),
        ("auto", "float32", cpu("avx512_bf16"), "float32"),
        ("auto", "float32", H100, "bfloat16"),
        ("auto", "float16", H100, "float16"),
        ("float64", "bfloat16", H100, "float64"),
    ],
)
def test_auto_suits_weights_and_device(asked: str, stored: str, device: Device, dtype: str) -> None:
    assert resolve_dtype(asked, parse_config(config(torch_dtype=stored)), device) == dtype


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InvalidInput, match="dtype: 'int4' is not one of auto, float64"):
        resolve_dtype("int4", parse_config(SMOLLM2), H100)
