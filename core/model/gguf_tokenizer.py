"""The tokenizer that a GGUF file describes, written as Hugging Face's files.

A GGUF names its pre-tokenizer (`tokenizer.ggml.pre`) instead of spelling it out, and how text is cut decides the tokens
of every number and line break. The names in `PRE_TOKENIZERS` are spelled out here; a file with another name is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .gguf_file import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""llama.cpp's token types: a piece of text, a special token, and one that is matched whole before merging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """How text is cut before merging."""

    pattern: str | None = None
    """Pieces are the matches of this pattern; None is GPT-2's own."""
    single_digits: bool = False
    """Each digit is a piece of its own, cut before anything else."""
    nfc: bool = False
    """Text is brought to Unicode's composed form first."""
    whole_words: bool = False
    """A piece that is in the vocabulary is one token, whatever the merges say."""
    adds_bos: bool = False
    """A file that does not say starts every text with its BOS token."""


LLAMA3 = PreTokenizer(
    pattern=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    whole_words=True,
    adds_bos=True,
)
QWEN2 = PreTokenizer(
    pattern=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    nfc=True,
)
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": LLAMA3,
    "smaug-bpe": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` of `file` into `folder`."""
    pre = _pre_tokenizer(file)
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    ids = {name: file.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding")}
    adds_bos = ids["bos"] is not None and file.get("tokenizer.ggml.add_bos_token", pre.adds_bos)
    tokenizer = _tokenizer(file, pre, tokens, ids["bos"] if adds_bos else None)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.config()["max_position_embeddings"],
    }
    for name, field in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        if ids[name] is not None:
            config[f"{field}_token"] = tokens[ids[name]]
    if template := file.get("tokenizer.chat_template"):
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    generation = {f"{name[:3]}_token_id": ids[name] for name in ("bos", "eos", "padding") if ids[name] is not None}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))


def _pre_tokenizer(file: GGUFFile) -> PreTokenizer:
    kind, name = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or name not in PRE_TOKENIZERS:
        raise ModelError(
            f"{file.path}: tokenizer {kind!r} with pre-tokenizer {name!r} is not supported from GGUF files.\n"
            f"  supported: 'gpt2' with {', '.join(PRE_TOKENIZERS)}\n"
            "  use the model's Hugging Face folder instead, which brings its own tokenizer.json"
        )
    return PRE_TOKENIZERS[name]


def _tokenizer(file: GGUFFile, pre: PreTokenizer, tokens: list[str], bos: int | None) -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    merges = [tuple(merge.split(" ", 1)) for merge in file.require("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words))
    steps = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern:
        steps.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    if bos is not None:
        start = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, bos)]
        )
    types = file.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    for kind, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        add([AddedToken(t, normalized=False) for t, own in zip(tokens, types, strict=True) if own == kind])
    return tokenizer
