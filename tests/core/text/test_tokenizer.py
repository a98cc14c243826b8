from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headstock.core.errors import InvalidInput, ModelError
from headstock.core.text import Tokenizer
from support.vocabularies import byte_fallback, byte_level, write_folder

TEXTS = ["", "the fox", " the  fox, 42!", "é 世 \U0001f336", "<|end|>the", "a\nb\t"]


@pytest.fixture
def folder(tmp_path):
    config = {"eos_token": {"content": "<|end|>"}, "chat_template": "x", "added_tokens_decoder": {}}
    return write_folder(tmp_path, byte_level(), tokenizer_config=config)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_those_of_transformers(tmp_path, make, text):
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, make()))
    peer = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    for special in (True, False):
        ids = tokenizer.encode(text, add_special_tokens=special)
        assert ids == peer.encode(text, add_special_tokens=special)
        assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True)
    assert tokenizer.vocab_size == len(peer)


def test_the_post_processor_decides_about_a_begin_token(tmp_path):
    tokenizer = Tokenizer.from_folder(
        write_folder(tmp_path, byte_fallback(), tokenizer_config={"bos_token": "<s>", "add_bos_token": False})
    )
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("the", add_special_tokens=False)[0] != 1
    assert tokenizer.special_tokens == {"bos_token": "<s>"}


def test_truncation_and_padding_left_in_the_file_are_switched_off(tmp_path):
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    assert len(tokenizer.encode("abcdef")) == 6
    assert len(tokenizer.encode("a")) == 1


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"tokenizer_config": {"eos_token": "<|end|>"}}, (264,)),
        ({"special_tokens_map": {"eos_token": {"content": "<|end|>"}}}, (264,)),
        ({"tokenizer_config": {"eos_token": "<|end|>"}, "generation_config": {"eos_token_id": [7, 264]}}, (264, 7)),
        ({"tokenizer_config": {"eos_token": "<|end|>"}, "config": {"eos_token_id": 5}}, (264, 5)),
        ({"generation_config": {"eos_token_id": 7}, "config": {"eos_token_id": 5}}, (7,)),
        ({"generation_config": {"eos_token_id": 0}}, (0,)),
        ({"tokenizer_config": {"eos_token": "<none>"}}, ()),
        ({}, ()),
    ],
)
def test_the_ends_of_a_sequence_come_from_tokenizer_and_generation_config(tmp_path, files, eos):
    assert Tokenizer.from_folder(write_folder(tmp_path, byte_level(), **files)).eos_token_ids == eos


@pytest.mark.parametrize(
    "config",
    [
        {"pad_token": "größe"},
        {"additional_special_tokens": ["größe"]},
        {"extra_special_tokens": {"image_token": "größe"}},
        {"added_tokens_decoder": {"266": {"content": "größe", "special": True}}},
    ],
)
def test_a_token_that_the_config_calls_special_is_skipped(tmp_path, config):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), tokenizer_config=config))
    ids = tokenizer.encode("a größe")
    assert ids[-1] == 266
    assert tokenizer.decode(ids) == "a "
    assert tokenizer.vocab_size == 267


def test_token_texts_and_bytes_for_logprobs(folder):
    tokenizer = Tokenizer.from_folder(folder)
    start, one, two = tokenizer.encode("\U0001f336")
    assert [tokenizer.token_bytes(token) for token in (start, one, two)] == [b"\xf0\x9f", b"\x8c", b"\xb6"]
    assert tokenizer.token_text(start) == ""
    assert tokenizer.token_text(two, [start, one]) == "\U0001f336"
    assert tokenizer.token_text(two) == "\ufffd"
    assert tokenizer.token_text(264) == "<|end|>"
    assert tokenizer.token_bytes(10**6) == b""


def test_a_word_of_a_sentencepiece_vocabulary_keeps_its_space_in_logprobs(tmp_path):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_fallback()))
    (the,) = tokenizer.encode("the", add_special_tokens=False)[:1]
    assert tokenizer.token_text(the).startswith(" ")
    assert tokenizer.token_text(the).encode() == tokenizer.token_bytes(the)


def test_a_lone_surrogate_is_refused(folder):
    with pytest.raises(InvalidInput, match=r"prompt: character 2 is the lone surrogate U\+D83C"):
        Tokenizer.from_folder(folder).encode("ab\ud83c")


def test_a_folder_without_tokenizer_says_what_is_missing(tmp_path):
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "["),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "[" * 100_000),
    ],
)
def test_a_broken_file_is_named(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=name):
        Tokenizer.from_folder(folder)


def test_a_broken_slow_tokenizer_is_refused_with_its_reason(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    with pytest.raises(ModelError, match=r"converting tokenizer\.model failed"):
        Tokenizer.from_folder(tmp_path)


def test_a_sentencepiece_model_is_converted_by_transformers(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen jugs"] * 20
    with (tmp_path / "tokenizer.model").open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=model, vocab_size=320, model_type="bpe", byte_fallback=True,
            character_coverage=1.0, minloglevel=2,
        )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    ids = tokenizer.encode("the lazy fox", add_special_tokens=False)
    assert ids == processor.encode("the lazy fox")
    assert tokenizer.decode(ids) == "the lazy fox"
    assert tokenizer.eos_token_ids == (2,)


def test_neither_torch_nor_transformers_is_loaded(folder):
    script = (
        "import sys; from headstock.core.text import ChatTemplate, Tokenizer\n"
        f"t = Tokenizer.from_folder({str(folder)!r}); t.decode(t.encode('the'))\n"
        f"ChatTemplate.from_folder({str(folder)!r}).render([{{'role': 'user', 'content': 'x'}}])\n"
        "print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
