"""Backends chosen anew over loaded weights: answers are the new ones' own, and a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Capabilities, Device
from headstock.core.engine import LLMEngine, Prompt
from headstock.core.errors import BackendError, CapacityError, HeadstockError
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.engine import FixedProvider
from support.serving import answers, finish, tokens
from support.tiny import tiny_engine, tiny_folder

PROMPTS = [[5, 9, 13], list(range(30, 63))]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


class Zeros(ReferenceBackend):
    """What it computes cannot be taken for another's."""

    def forward(self, *arguments: Any, out: Any, **keywords: Any) -> None:
        out.zero_()


class Narrow(SdpaBackend):
    """Addresses hardly anything."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return replace(super().capabilities(device), max_cache_elements=1)


class Refusing(FixedProvider):
    def select(self, *arguments: Any) -> Any:
        raise BackendError("none fits")


class Blocks(FixedProvider):
    """Has a block size of its own."""

    def __init__(self, pick: Any, layout: str, block_size: int) -> None:
        super().__init__(pick, layout)
        self._block_size = block_size

    def select(self, specs: Any, device: Any, block_size: int | None = None) -> Any:
        return super().select(specs, device, self._block_size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(folder: ModelFolder) -> LLMEngine:
    return tiny_engine(folder, FixedProvider(SdpaBackend))


def test_answers_are_those_of_an_engine_that_began_with_the_new_ones(folder: ModelFolder, engine: LLMEngine) -> None:
    answers(engine, PROMPTS, GREEDY)
    engine.core.set_attention(FixedProvider(Zeros))
    outputs = answers(engine, PROMPTS, GREEDY)
    assert tokens(outputs) == tokens(answers(tiny_engine(folder, FixedProvider(Zeros)), PROMPTS, GREEDY))
    assert [output.num_cached_tokens for output in outputs] == [0, 0]
    engine.core.set_attention(FixedProvider(SdpaBackend))
    fresh = answers(tiny_engine(folder, FixedProvider(SdpaBackend)), PROMPTS, GREEDY)
    assert tokens(answers(engine, PROMPTS, GREEDY)) == tokens(fresh)


def test_block_size_and_layout_may_be_others(engine: LLMEngine) -> None:
    before, blocks = tokens(answers(engine, PROMPTS, GREEDY)), engine.core.info.num_blocks
    engine.core.set_attention(Blocks(ReferenceBackend, "hnd", 8))
    assert tokens(answers(engine, PROMPTS, GREEDY)) == before
    info = engine.core.info
    assert (info.block_size, info.num_blocks) == (8, 2 * blocks - 1)  # the null block is not doubled
    assert info.attention == engine.core.selection.summary()
    assert "ReferenceBackend" in info.attention[0]
    assert engine.core.selection.layout.name == "hnd"


def test_it_is_refused_while_requests_live_or_the_engine_sleeps(engine: LLMEngine) -> None:
    engine.add_request(Prompt(token_ids=(5, 9)), GREEDY)
    with pytest.raises(HeadstockError, match="awake and has no requests"):
        engine.core.set_attention(FixedProvider(Zeros))
    finish(engine)
    engine.core.sleep()
    with pytest.raises(HeadstockError, match="awake and has no requests"):
        engine.core.set_attention(FixedProvider(Zeros))


def test_a_choice_that_cannot_be_made_leaves_even_the_cache(engine: LLMEngine) -> None:
    first = answers(engine, PROMPTS, GREEDY)
    with pytest.raises(BackendError, match="none fits"):
        engine.core.set_attention(Refusing(Zeros))
    again = answers(engine, PROMPTS, GREEDY)
    assert tokens(again) == tokens(first)
    assert [output.num_cached_tokens for output in again] == [0, 32]


def test_one_whose_cache_cannot_be_had_leaves_the_former_backends(engine: LLMEngine) -> None:
    first, info = answers(engine, PROMPTS, GREEDY), engine.core.info
    with pytest.raises(CapacityError, match="addresses at most 1 elements"):
        engine.core.set_attention(FixedProvider(Narrow))
    assert engine.core.info == info
    assert engine.core.selection.choices["model.layers.0.self_attn.attn"].cls is SdpaBackend
    assert tokens(answers(engine, PROMPTS, GREEDY)) == tokens(first)
