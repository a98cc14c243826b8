"""`headstock embed` and `LLM.embed`: vectors on stdout, the rest on stderr, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headstock import LLM
from headstock.core.errors import InvalidInput
from support.architectures import RandomModel, hidden_states, random_encoder, say_pooling
from support.cli import run_cli

TEXTS = ["the fox", "a hound", "the fox"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    """A BERT that averages its tokens, at length 1, and knows all tokens of the tokenizer."""
    model = random_encoder("bert", tmp_path_factory.mktemp("bert"), vocab_size=300)
    say_pooling(model.folder.path, normalize=True, pooling_mode_mean_tokens=True)
    return model


def expected(model: RandomModel, text: str) -> torch.Tensor:
    ids = LLM(model.folder.path).tokenizer.encode(text)
    return torch.nn.functional.normalize(hidden_states(model.theirs, ids).mean(0), dim=-1)


def test_each_text_gets_a_line_with_its_vector(encoder: RandomModel) -> None:
    result = run_cli("embed", str(encoder.folder.path), *TEXTS)
    found = [json.loads(line) for line in result.out.splitlines()]
    assert result.code == 0
    for vector, text in zip(found, TEXTS, strict=True):
        assert (torch.tensor(vector) - expected(encoder, text)).abs().max() < 1e-4
    model, chosen, figures = result.err.splitlines()
    assert model.startswith("model: BertModel, run by transformers 5")
    assert chosen.startswith("attention backend: ")
    assert figures.startswith("3 texts, ")


def test_the_document_says_what_computed_it_and_how(encoder: RandomModel) -> None:
    document = run_cli("embed", str(encoder.folder.path), "-", "a hound", "--json", stdin=b"the fox").json
    assert document["model"]["architecture"] == "BertModel"
    assert document["attention"]["choices"][0]["layers"] == [f"encoder.layer.{i}.attention.self" for i in range(2)]
    assert document["pooling"] == {"kind": "mean", "normalize": True}
    assert [output["prompt"] for output in document["outputs"]] == ["the fox", "a hound"]
    (length,) = {len(output["embedding"]) for output in document["outputs"]}
    assert length == 64


def test_a_decoder_embeds_when_it_is_asked_to(tiny: str) -> None:
    result = run_cli("embed", tiny, "the fox")
    assert result.code == 0
    assert len(json.loads(result.out)) == 32
    with pytest.raises(InvalidInput, match=r"was loaded to generate text; to embed, load it with runner='pooling'"):
        LLM(tiny).embed("the fox")


def test_an_encoder_generates_nothing(encoder: RandomModel) -> None:
    llm = LLM(encoder.folder.path)
    for call in (lambda: llm.generate("the fox"), llm.stats, lambda: next(llm.stream("the fox"))):
        with pytest.raises(InvalidInput, match=r"was loaded to embed text and generates none; use LLM\.embed"):
            call()
    result = run_cli("generate", str(encoder.folder.path), "the fox")
    assert (result.code, result.out) == (2, "")
    assert "it may give texts vectors: headstock embed" in result.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("",), "prompt: is empty"),
        (("x" * 200,), "has 200 tokens, and the model takes 128 at most"),
        (("x", "--max-num-batched-tokens", "0"), "max_num_batched_tokens: must be from 1"),
        (("x" * 9, "--max-num-batched-tokens", "8"), "raise max_num_batched_tokens"),
        (("x", "--max-model-len", "4096"), "4096 is more than the model's own limit of 128"),
        (("x", "--dtype", "int8"), "dtype: 'int8' is not one of"),
        (("x", "--attention-backend", "no-such"), '"no-such" is not known'),
        (("x", "--model-impl", "vllm"), "model_impl: must be one of"),
        (("x", "--model-impl", "headstock"), "BertModel is not supported"),
    ],
)
def test_wrong_use_is_one_message(encoder: RandomModel, arguments: tuple[str, ...], problem: str) -> None:
    result = run_cli("embed", str(encoder.folder.path), *arguments)
    assert (result.code, result.out) == (2, "")
    assert problem in result.err
    assert "Traceback" not in result.err


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    result = run_cli("embed", str(tmp_path), "x")
    assert result.code == 2
    assert "no config.json in this folder" in result.err
