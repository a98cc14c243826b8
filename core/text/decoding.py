"""`TextDecoder`: token ids to text, in pieces as they come, exact at every split."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from .spelling import Spelling

_utf8 = codecs.getincrementaldecoder("utf-8")
LONGEST_INCOMPLETE = 3
"""Bytes of a UTF-8 character without its last."""


class TokenBytes(Protocol):
    """What the decoder needs of a tokenizer."""

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    @property
    def spelling(self) -> Spelling: ...

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes: ...


class TextDecoder:
    """The text that a stream of tokens adds to the text of `context_token_ids`.

    The pieces returned, put together, do not depend on how the stream is cut. Incomplete UTF-8 waits for its rest;
    broken UTF-8 gives U+FFFD at once, one for each maximal broken sequence, as Unicode recommends (chapter 3.9).
    Bytes at the end of the context that begin a character are completed by the stream if they can be, else ignored.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        context_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        at_start: bool = True,
    ) -> None:
        """`at_start=False` says that text stands before even where the context shows none."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._utf8 = _utf8("replace")
        tail = self._tail(context_token_ids)
        self._context = _incomplete(tail)
        self._first = at_start and not tail
        self._leading_spaces = tokenizer.spelling.leading_spaces if self._first else 0

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        data = self._join(token_ids)
        if self._context and data:
            if _continues(self._context, data[:1]):
                data = self._context + data
            self._context = b""
        return self._utf8.decode(data)

    def flush(self) -> str:
        """End of the stream: U+FFFD where a character is incomplete, else nothing."""
        return self._utf8.decode(b"", True)

    def _join(self, token_ids: Iterable[int]) -> bytes:
        spell, hidden = self._tokenizer.token_bytes, self._hidden
        if not self._first and not self._leading_spaces:
            return b"".join([spell(token) for token in token_ids if token not in hidden])
        parts: list[bytes] = []
        for token in token_ids:
            if token in hidden:
                continue
            part = spell(token, first=self._first)
            self._first = False
            if self._leading_spaces and part:
                kept = part.lstrip(b" ")
                cut = min(len(part) - len(kept), self._leading_spaces)
                self._leading_spaces = 0 if kept else self._leading_spaces - cut
                part = part[cut:]
            parts.append(part)
        return b"".join(parts)

    def _tail(self, token_ids: Sequence[int]) -> bytes:
        """The last bytes of a context, enough to see whether it ends inside a character; empty if it shows no text."""
        tail = b""
        for token in reversed(token_ids):
            if token not in self._hidden:
                tail = self._tokenizer.token_bytes(token) + tail
                if len(tail) >= LONGEST_INCOMPLETE:
                    break
        return tail


def _incomplete(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a character without ending it."""
    decoder = _utf8("replace")
    decoder.decode(data[-LONGEST_INCOMPLETE:])
    return decoder.getstate()[0]


def _continues(incomplete: bytes, byte: bytes) -> bool:
    """Whether `byte` may follow `incomplete` in valid UTF-8."""
    try:
        _utf8("strict").decode(incomplete + byte)
    except UnicodeDecodeError:
        return False
    return True
