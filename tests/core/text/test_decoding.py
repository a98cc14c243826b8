from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.text import Tokenizer
from headstock.core.text.decoding import TextDecoder
from headstock.core.text.spelling import Spelling
from headstock.core.text.tokenizer_files import TokenizerFiles
from support.vocabularies import byte_fallback, byte_level


class Scripted:
    """A vocabulary in which token i is the i-th of some byte strings."""

    spelling = Spelling()

    def __init__(self, *tokens: bytes, special: Iterable[int] = ()) -> None:
        self.tokens = tokens
        self.special_token_ids = frozenset(special)

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        return self.tokens[token_id]


def stream(*tokens: bytes, special: Iterable[int] = ()) -> list[str]:
    """What each token releases, and what the end does."""
    decoder = TextDecoder(Scripted(*tokens, special=special))
    return [*(decoder.push((index,)) for index in range(len(tokens))), decoder.flush()]


@pytest.mark.parametrize(
    ("tokens", "deltas"),
    [
        ((b"\xc4", b"\x8f"), ["", "ď", ""]),
        ((b"\xf0\x9f", b"\x8c\xb6"), ["", "\U0001f336", ""]),
        ((b"\xf0", b"\x9f", b" "), ["", "", "\ufffd ", ""]),
        ((b"\x80",), ["\ufffd", ""]),
        ((b"\x80\x80",), ["\ufffd\ufffd", ""]),
        ((b"ab\xe4\xb8",), ["ab", "\ufffd"]),
        ((b"\xef", b"\xbf\xbd", b"x"), ["", "\ufffd", "x", ""]),
        ((b"\xf0\x9f", b"\xf0\x9f\x8c", b"\xb6"), ["", "\ufffd", "\U0001f336", ""]),
        ((b"\xed\xa0\x80", b"\xc0\xaf"), ["\ufffd" * 3, "\ufffd" * 2, ""]),
    ],
)
def test_bytes_wait_for_their_character_and_no_longer(tokens, deltas):
    assert stream(*tokens) == deltas


def test_a_skipped_special_token_inside_a_character_does_not_break_it():
    assert stream(b"\xf0\x9f", b"<end>", b"\x8c\xb6", special={1}) == ["", "", "\U0001f336", ""]


def test_two_streams_do_not_share_their_pending_bytes():
    vocabulary = Scripted(b"\xc4", b"\x8f", b"\x99")
    one, two = TextDecoder(vocabulary), TextDecoder(vocabulary)
    assert [one.push((0,)), two.push((0,)), one.push((1,)), two.push((2,))] == ["", "", "ď", "ę"]


@pytest.mark.parametrize(
    ("context", "first", "text"),
    [
        (b"\xf0\x9f", b"\x8c\xb6", "\U0001f336"),
        (b"x\xf0\x9f\x8c", b"\xb6y", "\U0001f336y"),
        (b"\xf0\x9f", b" y", " y"),
        (b"\xef\xbf", b"\xbd", "\ufffd"),
        (b"\xef\xbf", b"\xc3\xa9", "é"),
        (b"\x9f\x8c", b"y", "y"),
    ],
)
def test_a_character_begun_by_the_prompt_is_completed_or_else_ignored(context, first, text):
    decoder = TextDecoder(Scripted(context, first), (0,))
    assert decoder.push((1,)) + decoder.flush() == text


def tokenizer_of(backend) -> Tokenizer:
    return Tokenizer(backend, TokenizerFiles(named={}, special=frozenset(), eos_token_ids=()))


LEVEL_BACKEND, FALLBACK_BACKEND = byte_level(), byte_fallback()
LEVEL, FALLBACK = tokenizer_of(LEVEL_BACKEND), tokenizer_of(FALLBACK_BACKEND)
TOKENIZERS = pytest.mark.parametrize("tokenizer", [LEVEL, FALLBACK], ids=["byte-level", "byte-fallback"])


def cut(items: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted(c % (len(items) + 1) for c in cuts), len(items)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]


@TOKENIZERS
@given(data=st.data())
def test_deltas_put_together_are_the_full_decode_however_the_stream_is_cut(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    cuts = data.draw(st.lists(st.integers(0, 12), max_size=5))
    skip = data.draw(st.booleans())
    decoder = TextDecoder(tokenizer, skip_special_tokens=skip)
    deltas = [decoder.push(chunk) for chunk in cut(ids, cuts)]
    assert "".join(deltas) + decoder.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@given(st.lists(st.integers(0, LEVEL.vocab_size - 2), max_size=12), st.booleans())
def test_any_byte_level_tokens_decode_as_in_the_tokenizers_library(ids, skip):
    assert LEVEL.decode(ids, skip_special_tokens=skip) == LEVEL_BACKEND.decode(ids, skip_special_tokens=skip)


@TOKENIZERS
@given(data=st.data())
def test_any_text_decodes_as_in_the_tokenizers_library(tokenizer, data):
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
    ids = tokenizer.encode(text, add_special_tokens=False)
    backend = LEVEL_BACKEND if tokenizer is LEVEL else FALLBACK_BACKEND
    assert tokenizer.decode(ids) == backend.decode(ids) == text


@TOKENIZERS
@given(data=st.data())
def test_an_output_continues_the_text_of_its_prompt(tokenizer, data):
    prompt = data.draw(st.text("the fox é世\U0001f336", min_size=1).filter(str.strip))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8))
    context = tokenizer.encode(prompt)
    decoder = TextDecoder(tokenizer, context)
    assert tokenizer.decode(context) + decoder.push(ids) + decoder.flush() == tokenizer.decode([*context, *ids])


def test_the_leading_space_of_a_word_is_dropped_only_where_no_text_stands_before():
    the = FALLBACK.encode("the", add_special_tokens=False)
    assert FALLBACK.decode(the) == "the"
    assert TextDecoder(FALLBACK, [1]).push(the) == "the"
    assert TextDecoder(FALLBACK, [1], skip_special_tokens=False).push(the) == " the"
    assert TextDecoder(FALLBACK, FALLBACK.encode("fox")).push(the) == " the"


def test_broken_byte_fallback_costs_only_the_broken_bytes():
    # The tokenizers library gives up the whole run of byte tokens: two tokens of "é" and a lone 80 become three U+FFFD.
    run = [3 + byte for byte in b"\xc3\xa9\x80"]
    assert FALLBACK_BACKEND.decode(run) == "\ufffd" * 3
    assert FALLBACK.decode(run) == "é\ufffd"
