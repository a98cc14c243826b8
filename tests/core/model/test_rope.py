"""Rotary frequencies, against closed forms and transformers with the parameters of real models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headstock.core.model import parse_config
from headstock.core.model.layers import Rotary, rotate
from headstock.core.model.rope import RopeConfig, inverse_frequencies, yarn_attention_factor

REAL: dict[str, dict[str, Any]] = {
    "Llama 3.1": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "Qwen2.5 with yarn": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn, all parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
    "yarn, factor for attention given": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.25,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}
BASE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "max_position_embeddings": 131072,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "vocab_size": 10,
    "rms_norm_eps": 1e-6,
}


@pytest.mark.parametrize("name", REAL)
def test_frequencies_and_factor_equal_those_of_transformers(name: str) -> None:
    theirs = LlamaConfig(**BASE, rope_parameters=dict(REAL[name]))
    frequencies, factor = ROPE_INIT_FUNCTIONS[REAL[name]["rope_type"]](theirs, torch.device("cpu"))
    ours = parse_config({**BASE, "architectures": ["LlamaForCausalLM"], "rope_parameters": REAL[name]}).rope
    torch.testing.assert_close(inverse_frequencies(ours, 128), frequencies, rtol=1e-6, atol=0)
    assert ours.attention_factor == pytest.approx(factor)


def test_plain_frequencies_are_a_geometric_row() -> None:
    expected = [100.0 ** (-i / 4) for i in range(4)]
    assert inverse_frequencies(RopeConfig(theta=100.0), 8).tolist() == pytest.approx(expected)


def test_divisors_stretch_each_wave_by_itself() -> None:
    plain = inverse_frequencies(RopeConfig(theta=100.0), 8)
    divided = inverse_frequencies(RopeConfig(theta=100.0, kind="divisors", divisors=(1.0, 2.0, 4.0, 8.0)), 8)
    assert (plain / divided).tolist() == pytest.approx([1.0, 2.0, 4.0, 8.0])


def test_yarn_raises_the_logits_with_the_logarithm_of_the_factor() -> None:
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(math.e) == pytest.approx(1.1)
    assert yarn_attention_factor(math.e, 1.0, 1.0) == 1.0


def test_rotated_products_depend_on_the_distance_alone() -> None:
    rotary = Rotary(RopeConfig(theta=100.0), 8, device=torch.device("cpu"))
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0)).double().unbind()
    products = []
    for shift in (0, 5, 50):
        cosine, sine = rotary(torch.tensor([3 + shift, 1 + shift]), torch.float64)
        turned = rotate(torch.cat((query, key)), cosine, sine)
        products.append(float((turned[0] * turned[1]).sum()))
    assert products == pytest.approx([products[0]] * 3, abs=1e-4)


def test_angles_stay_float32_in_a_16_bit_model() -> None:
    rotary = Rotary(RopeConfig(theta=10000.0), 4, device=torch.device("cpu"))
    cosine, sine = rotary(torch.tensor([1001]), torch.bfloat16)
    assert cosine.dtype == sine.dtype == torch.bfloat16
    assert float(sine[0, 0, 0]) == pytest.approx(math.sin(1001), abs=4e-3)
