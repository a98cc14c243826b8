"""Small tokenizers made on the spot, in the two kinds that decoder-only models use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "f"), ("Ġf", "o"), ("Ġfo", "x"), ("Ã", "©"), ("ð", "Ł")]
WORDS = ["▁the", "▁fox", "▁", "▁▁", "é", "世", *"abcdefghijklmnopqrstuvwxyz,.!0123456789"]


def byte_level() -> Tokenizer:
    """Byte-level BPE as GPT-2's: every byte, a few merges (one for `é`, one for the first two bytes of an emoji)."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in MERGES]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|end|>", "<|im_start|>")])
    tokenizer.add_tokens([AddedToken("größe", normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece's kind, as Llama 2's: `▁` marks words, unknown characters fall back to bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(WORDS)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "▁")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    """A model folder with `tokenizer` and JSON files, named without their ending."""
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
