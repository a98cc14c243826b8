"""Which bytes a vocabulary piece stands for: the decoder of a `tokenizer.json`, read as data.

Decoding by bytes, token by token, is what makes streaming exact: a character is done when its last byte is there,
however many tokens it took. Only decoders that work piece by piece can be read this way; byte-level BPE, SentencePiece
with byte fallback and Metaspace do, and with them the decoder-only models we know of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import ModelError

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How pieces become bytes, and what the start of a text loses."""

    byte_level: bool = False
    """Each character of a piece stands for one byte, in GPT-2's alphabet."""
    byte_fallback: bool = False
    """Pieces written `<0xE4>` stand for that byte."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Replaced in every piece, in order."""
    first_piece_drops: str = ""
    """A character that the first piece of a text loses (Metaspace's word mark) before the replacements."""
    prefix: str = ""
    """Stands before every piece."""
    leading_spaces: int = 0
    """At most so many spaces are cut from the start of a text."""

    def bytes_of(self, piece: str, *, added: bool = False, first: bool = False) -> bytes:
        """The bytes of `piece`.

        `added` pieces of a byte-level vocabulary are literal text. `first` says that no text stands before.
        """
        if self.byte_level:
            return piece.encode() if added else _from_alphabet(piece)
        if self.byte_fallback and (match := BYTE_PIECE.fullmatch(piece)):
            return bytes((int(match[1], 16),))
        if first and self.first_piece_drops:
            piece = piece.replace(self.first_piece_drops, "")
        for old, new in self.replacements:
            piece = piece.replace(old, new)
        return (self.prefix + piece).encode()


def read_spelling(decoder: Mapping[str, Any] | None) -> Spelling:
    """The `Spelling` that a `tokenizer.json` decoder entry describes; `ModelError` where it does not work by piece."""
    if decoder is None:
        return Spelling(prefix=" ", leading_spaces=1)
    fields: dict[str, Any] = {}
    fused = False
    for step in _steps(decoder):
        kind = step["type"]
        if kind == "Fuse":
            fused = True
        elif kind == "ByteLevel":
            fields["byte_level"] = fused = True
        elif kind == "ByteFallback":
            fields["byte_fallback"] = True
        elif kind == "Replace" and "String" in step["pattern"]:
            pair = (step["pattern"]["String"], step["content"])
            fields["replacements"] = (*fields.get("replacements", ()), pair)
        elif kind == "Metaspace":
            fields["replacements"] = (*fields.get("replacements", ()), (step["replacement"], " "))
            if step.get("prepend_scheme", "always") != "never":
                fields["first_piece_drops"] = step["replacement"]
        elif kind == "Strip" and fused and step["content"] == " " and not step["stop"]:
            fields["leading_spaces"] = fields.get("leading_spaces", 0) + step["start"]
        else:
            raise ModelError(
                f"this tokenizer's decoder has a step that cannot be streamed: {json.dumps(step)}.\n"
                "  supported: ByteLevel, ByteFallback, Metaspace, Replace of a string, Fuse, Strip of leading spaces"
            )
    return Spelling(**fields)


def _steps(decoder: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The decoder's steps, with nested sequences laid flat."""
    if decoder["type"] != "Sequence":
        return (decoder,)
    return tuple(step for inner in decoder["decoders"] for step in _steps(inner))


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are their own byte, the 68 others are moved up from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


def _from_alphabet(piece: str) -> bytes:
    alphabet = _alphabet()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:  # a piece outside the alphabet is literal text, as in the tokenizers library
        return piece.encode()
