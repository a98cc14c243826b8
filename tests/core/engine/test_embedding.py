"""Texts embedded together have the vectors that transformers gives each by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.engine import EmbeddingEngine, EngineConfig, InputProcessor, Prompt
from headstock.core.errors import InvalidInput, ModelError
from headstock.core.model import ModelFolder, describe_model, resolve_runner
from headstock.core.text import Tokenizer
from support.architectures import ENCODERS, RandomModel, hidden_states, random_encoder, random_model, say_pooling
from support.attention import CPU
from support.engine import FixedProvider

TEXTS = [[(7 * i) % 90 + 5 for i in range(length)] for length in (12, 3, 25, 1, 17, 8)]


def engine_over(folder: ModelFolder, backend: Any = ReferenceBackend, model_impl: str = "auto", **config: Any) -> Any:
    """Steps of 30 tokens in float32."""
    settings = {"device": CPU, "max_num_batched_tokens": 30, "dtype": "float32", **config}
    model = describe_model(folder.path, model_impl, "pooling")
    inputs = InputProcessor(
        Tokenizer.from_folder(folder.path), vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids
    )
    return EmbeddingEngine(EngineConfig(**settings), folder, model, FixedProvider(backend), inputs)


def vectors(engine: EmbeddingEngine, texts: list[list[int]] = TEXTS) -> tuple[Tensor, list[int]]:
    """Vectors of `texts`, and how many there were in each step."""
    steps = list(engine.embed([Prompt(token_ids=tuple(text)) for text in texts]))
    outputs = [output for step in steps for output in step]
    assert [list(output.prompt_token_ids) for output in outputs] == texts
    return torch.tensor([output.outputs.embedding for output in outputs]), [len(step) for step in steps]


def first_tokens(model: RandomModel) -> Tensor:
    states = torch.stack([hidden_states(model.theirs, text)[0] for text in TEXTS])
    return torch.nn.functional.normalize(states, dim=-1)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_give_the_states_of_transformers(name: str, tmp_path: Path) -> None:
    model = random_encoder(name, tmp_path)
    assert resolve_runner("auto", tmp_path) == "pooling"
    found, steps = vectors(engine_over(model.folder))
    assert steps == [2, 2, 2]
    assert (found - first_tokens(model)).abs().max() < (3e-4 if name == "distilbert" else 2e-5)


def test_another_backend_gives_the_same(tmp_path: Path) -> None:
    model = random_encoder("modernbert", tmp_path)
    found, _ = vectors(engine_over(model.folder, SdpaBackend))
    assert (found - first_tokens(model)).abs().max() < 2e-5


@pytest.mark.parametrize("model_impl", ["headstock", "transformers"])
def test_decoders_give_the_state_of_the_last_token(model_impl: str, tmp_path: Path) -> None:
    model = random_model("llama", tmp_path)
    assert resolve_runner("auto", tmp_path) == "generate"
    states = torch.stack([hidden_states(model.theirs, text)[-1] for text in TEXTS])
    found, _ = vectors(engine_over(model.folder, model_impl=model_impl))
    assert (found - torch.nn.functional.normalize(states, dim=-1)).abs().max() < 2e-5


def test_the_files_decide_on_the_pooling_and_the_longest_text(tmp_path: Path) -> None:
    model = random_encoder("bert", tmp_path)
    say_pooling(tmp_path, pooling_mode_mean_tokens=True, max_tokens=25)
    engine = engine_over(model.folder)
    found, _ = vectors(engine)
    expected = torch.stack([hidden_states(model.theirs, text).mean(0) for text in TEXTS])
    assert (found - expected).abs().max() < 1e-4
    with pytest.raises(InvalidInput, match="prompt 1 has 26 tokens, and the model takes 25 at most"):
        vectors(engine, [[5], [5] * 26])


def test_a_file_on_texts_alone_bounds_and_lower_cases_them(tmp_path: Path) -> None:
    folder = random_encoder("bert", tmp_path).folder
    shouted, said = Prompt(text="Z"), Prompt(text="z")
    cased = engine_over(folder)
    assert cased.tokenize([shouted]) != cased.tokenize([said])
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 25, "do_lower_case": true}')
    engine = engine_over(folder)
    assert engine.tokenize([shouted]) == engine.tokenize([said]) == cased.tokenize([said])
    with pytest.raises(InvalidInput, match="prompt 0 has 26 tokens, and the model takes 25 at most"):
        engine.tokenize([Prompt(token_ids=(5,) * 26)])


def test_a_decoder_with_those_files_pools_by_itself(tmp_path: Path) -> None:
    random_model("llama", tmp_path)
    say_pooling(tmp_path, normalize=True, pooling_mode_lasttoken=True)
    assert resolve_runner("auto", tmp_path) == "pooling"
    assert resolve_runner("generate", tmp_path) == "generate"


def test_steps_hold_no_more_texts_and_tokens_than_allowed(tmp_path: Path) -> None:
    model = random_encoder("bert", tmp_path)
    expected, _ = vectors(engine_over(model.folder))
    for config, steps in [({"max_num_seqs": 1}, [1] * 6), ({"max_num_batched_tokens": 100}, [6])]:
        found, sizes = vectors(engine_over(model.folder, **config))
        assert sizes == steps
        assert (found - expected).abs().max() < 1e-5


def test_a_text_longer_than_a_step_is_refused_with_what_to_raise(tmp_path: Path) -> None:
    engine = engine_over(random_encoder("bert", tmp_path).folder)
    with pytest.raises(InvalidInput, match="has 31 tokens, and a step computes 30 at most; raise max_num_batched"):
        vectors(engine, [[5] * 31])


def test_positions_that_roberta_keeps_to_itself_are_no_room_for_texts(tmp_path: Path) -> None:
    random_encoder("roberta", tmp_path)
    assert describe_model(tmp_path, "auto", "pooling").max_position == 128 - 2


def test_nothing_is_computed_before_all_texts_are_checked(tmp_path: Path) -> None:
    engine = engine_over(random_encoder("bert", tmp_path).folder)
    with pytest.raises(InvalidInput, match="token id 97 is not in the vocabulary"):
        next(engine.embed([Prompt(token_ids=(5,)), Prompt(token_ids=(97,))]))


@pytest.mark.parametrize("length", [129, 200])
def test_a_length_beyond_the_model_is_refused(length: int, tmp_path: Path) -> None:
    folder = random_encoder("bert", tmp_path).folder
    with pytest.raises(InvalidInput, match=f"{length} is more than the model's own limit of 128"):
        engine_over(folder, max_model_len=length)


def test_an_encoder_does_not_generate(tmp_path: Path) -> None:
    random_encoder("bert", tmp_path)
    with pytest.raises(ModelError, match=r"(?s)BertModel is not supported.*it may give texts vectors: headstock embed"):
        describe_model(tmp_path)


def test_an_unknown_runner_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be one of auto, generate, pooling, not 'draft'"):
        resolve_runner("draft", tmp_path)
