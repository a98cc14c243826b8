"""A random model of four layers, two of them with a window, in a folder like any other: engines start at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from headstock.core.attention import AttentionProvider
from headstock.core.engine import EngineConfig, EngineCore, InprocClient, InputProcessor, LLMEngine
from headstock.core.model import Decoder, ModelConfig, ModelFolder, describe_model, read_config
from headstock.core.scheduler.config import Policy
from headstock.core.text import Tokenizer

from .attention import CPU
from .engine import FixedProvider
from .vocabularies import byte_level, write_folder

WINDOW = 5


def tiny_folder(folder: Path, **changes: Any) -> ModelFolder:
    """Write the model; `changes` go into its config.json."""
    tokenizer = byte_level()
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": tokenizer.token_to_id("<|end|>"),
        **changes,
    }
    write_folder(folder, tokenizer, config=config, tokenizer_config={"eos_token": "<|end|>"})
    parsed = read_config(folder)
    model = Decoder(parsed, parsed.attention_specs("float32"), torch.float32, torch.device("cpu"))
    rng = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, view in model.destinations():
        # Large enough that the answers are varied, and norms near one.
        spread = torch.randn(view.shape, generator=rng)
        weights[name] = 1 + 0.1 * spread if "norm" in name else 0.5 * spread
    save_file(weights, folder / "model.safetensors")
    return ModelFolder(name="tiny", path=folder, origin="made by a test")


def tiny_core(
    folder: ModelFolder,
    provider: AttentionProvider | None = None,
    windows: Sequence[int | None] | None = None,
    model_impl: str = "auto",
    **config: Any,
) -> EngineCore:
    """A core over it; `config` goes into the `EngineConfig`, `windows`, one a layer, take the place of the model's."""
    if provider is None:
        from headstock.backends.sdpa import SdpaBackend

        provider = FixedProvider(SdpaBackend)
    settings = {"device": CPU, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**22, **config}
    model = describe_model(folder.path, model_impl)
    if windows is not None:
        assert isinstance(model, ModelConfig)
        model = replace(model, layers=tuple(replace(a, window=w) for a, w in zip(model.layers, windows, strict=True)))
    return EngineCore(EngineConfig(**settings), folder, model, provider)


def tiny_engine(folder: ModelFolder, provider: AttentionProvider | None = None, **config: Any) -> LLMEngine:
    """The same with text in front, in this process."""
    core = tiny_core(folder, provider, **config)
    return LLMEngine(
        InprocClient(core),
        tiny_inputs(
            folder,
            seed=config.get("seed", 0),
            model_impl=config.get("model_impl", "auto"),
            policy=config.get("scheduling_policy", "fcfs"),
        ),
    )


def tiny_inputs(
    folder: ModelFolder, *, seed: int = 0, model_impl: str = "auto", policy: Policy = "fcfs"
) -> InputProcessor:
    """What turns prompts into requests for it."""
    parsed = describe_model(folder.path, model_impl)
    tokenizer = Tokenizer.from_folder(folder.path)
    return InputProcessor(
        tokenizer, vocab_size=parsed.vocab_size, eos_token_ids=parsed.eos_token_ids, seed=seed, policy=policy
    )
