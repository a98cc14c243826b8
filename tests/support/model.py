"""Models for tests: small random ones in Hugging Face's form, and running a `Decoder` without engine or cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headstock.core.attention import AttentionBackend, BoundLayer, Capabilities, Device, ForwardContext, LayerParams
from headstock.core.attention import forward_context as in_context
from headstock.core.attention.reference import attend_sequence
from headstock.core.model import Decoder, ModelFolder, parse_config, read_config
from headstock.core.model.weights import load_decoder
from support.attention import make


class WholeTexts(AttentionBackend[Sequence[int]]):
    """Attention over whole texts that stand one after the other; the plan is their lengths. Needs no cache."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return Capabilities()

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None) -> None:
        for start, end in pairwise(accumulate(plan, initial=0)):
            out[start:end] = attend_sequence(query[start:end], key[start:end], value[start:end], layer.spec)[0]


def load(folder: Path, dtype: str = "float32") -> Decoder:
    """The model in `folder`, on the CPU."""
    config = read_config(folder)
    model = ModelFolder(name=str(folder), path=folder, origin="test")
    return load_decoder(config, model, dtype, "cpu", config.attention_specs(dtype))


@contextmanager
def attention_over(model: Decoder, lengths: Sequence[int]) -> Iterator[None]:
    """A forward context in which texts of `lengths` tokens stand one after the other."""
    layers = {
        name: BoundLayer(
            params=LayerParams(name=name, spec=spec), backend=make(WholeTexts, spec), kv_cache=None, group=0
        )
        for name, spec in model.config.attention_specs("float32").items()
    }
    slots = torch.full((sum(lengths),), -1)
    with (
        torch.inference_mode(),
        in_context(ForwardContext(layers=layers, plans=(tuple(lengths),), slot_mappings=(slots,))),
    ):
        yield


def logits_of(model: Decoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits (tokens of all texts, vocabulary) of texts that are computed in one flat row."""
    ids = torch.tensor([token for text in texts for token in text])
    positions = torch.cat([torch.arange(len(text)) for text in texts])
    with attention_over(model, [len(text) for text in texts]):
        return model.compute_logits(model(ids, positions))


TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
"""A Llama of a few thousand weights."""


def tensors_of(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random weights for `config`, under Hugging Face's names."""
    rng = torch.Generator().manual_seed(seed)
    model = Decoder(
        parsed := parse_config(config), parsed.attention_specs("float32"), torch.float32, torch.device("cpu")
    )
    return {name: torch.randn(view.shape, generator=rng) for name, view in model.destinations()}


def write_model(folder: Path, config: Mapping[str, Any] = TINY, seed: int = 0) -> dict[str, Tensor]:
    """A Hugging Face folder with `config` and random weights, which are returned."""
    tensors = tensors_of(config, seed)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return tensors
