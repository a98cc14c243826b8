from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from headstock.core.errors import ModelError
from headstock.core.text import Tokenizer
from headstock.core.text.spelling import read_spelling
from headstock.core.text.tokenizer_files import TokenizerFiles
from support.vocabularies import byte_level

PIECES = ["a", "▁a", "▁", "▁▁b", "c▁d", "<0x41>", " e"]


def tokenizer_with(decoder: decoders.Decoder | None) -> tuple[Tokenizer, Backend]:
    backend = Backend(models.WordLevel({piece: index for index, piece in enumerate(PIECES)}, unk_token="a"))
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend, TokenizerFiles(named={}, special=frozenset(), eos_token_ids=())), backend


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Metaspace(prepend_scheme="first"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
        decoders.Sequence(
            [decoders.Sequence([decoders.Replace("▁", "_")]), decoders.Replace("_", "-"), decoders.Fuse()]
        ),
    ],
)
@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=6))
def test_streamable_decoders_give_the_text_of_the_tokenizers_library(decoder, ids):
    tokenizer, backend = tokenizer_with(decoder)
    assert tokenizer.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [decoders.WordPiece(), decoders.BPEDecoder(), decoders.CTC(), decoders.Strip(" ", 1, 0), decoders.Strip(" ", 0, 1)],
)
def test_a_decoder_that_looks_at_neighbours_is_refused_by_name(decoder):
    state = json.loads(decoder.__getstate__())
    with pytest.raises(ModelError, match=state["type"]):
        read_spelling(state)


def test_all_256_bytes_have_a_character():
    backend = byte_level()
    spelling = read_spelling({"type": "ByteLevel"})
    pieces = [piece for piece, index in backend.get_vocab(with_added_tokens=False).items() if index < 256]
    assert sorted(spelling.bytes_of(piece) for piece in pieces) == [bytes((byte,)) for byte in range(256)]


def test_an_added_token_is_literal_text_in_a_byte_level_vocabulary():
    backend = byte_level()
    tokenizer = Tokenizer(backend, TokenizerFiles(named={}, special=frozenset(), eos_token_ids=()))
    ids = tokenizer.encode("die größe")
    assert backend.id_to_token(ids[-1]) == "größe"
    assert tokenizer.decode(ids) == "die größe"
