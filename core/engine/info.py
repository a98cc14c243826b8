"""`EngineInfo`: what a front end must know of an engine, wherever it lives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Fixed once the engine has started. Over several engines: of one of them, but for the counts said below."""

    version: str
    """Of headstock, where the engine runs."""
    model: str
    """Name, as the user gave it."""
    architecture: str
    """Class name of the model, in Hugging Face's terms."""
    implementation: str
    """Whose code runs it: ``"headstock"``, or ``"transformers"`` with a version."""
    dtype: str
    """Compute dtype: ``"float32"``, ``"bfloat16"``…"""
    block_size: int
    """Tokens a KV block."""
    num_blocks: int
    """KV blocks, the null block included; over several engines their sum."""
    max_model_len: int
    """Longest request, prompt and answer together. The KV cache holds it, so a prompt may have one token less."""
    max_num_seqs: int
    """Requests that run at once; over several engines their sum."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    """The model's own; empty where only the tokenizer knows."""
    attention: tuple[str, ...]
    """Which backend serves which layers, and why, a line each."""
    num_engines: int = 1
