"""Gemma, GPT-OSS and Mixtral with their windows, as transformers computes them without a cache."""

from __future__ import annotations

from typing import Any

import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.core.engine import LLMEngine
from headstock.core.params import SamplingParams
from support.architectures import RandomModel, log_probabilities, random_model
from support.engine import FixedProvider
from support.serving import answers, tokens
from support.tiny import tiny_engine

PROMPTS = [[(7 * i + 3) % 97 for i in range(40)], [5, 9, 13], [*[(7 * i + 3) % 97 for i in range(24)], 1, 2]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
FIVE_TO_ONE = ["sliding_attention"] * 5 + ["full_attention"]
MODELS: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    "gemma2": ({}, [None, 5]),
    "gemma3": ({"num_hidden_layers": 6, "layer_types": FIVE_TO_ONE, "sliding_window": 6}, [None, *[6] * 5]),
    "gpt-oss": ({}, [None, 5]),
    "mixtral": ({}, [6]),
}
"""Architecture → what is changed, and the windows of the KV groups that follow."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RandomModel]:
    name = request.param
    return name, random_model(name, tmp_path_factory.mktemp(name), **MODELS[name][0])


def engine_of(model: tuple[str, RandomModel], **config: Any) -> LLMEngine:
    settings = {"block_size": 4, "max_num_batched_tokens": 16, **config}
    engine = tiny_engine(model[1].folder, FixedProvider(ReferenceBackend), **settings)
    assert [group.retention.window for group in engine.core.kv_config.groups] == MODELS[model[0]][1]
    return engine


def require_theirs(model: tuple[str, RandomModel], found: list[tuple[int, ...]]) -> None:
    """Every token is the likeliest, by what transformers computes from the whole text."""
    for prompt, answer in zip(PROMPTS, found, strict=True):
        scores = log_probabilities(model[1].theirs, [*prompt, *answer])[len(prompt) - 1 : -1]
        lead = scores.max(-1).values - scores.gather(1, scores.new_tensor(answer).long()[:, None])[:, 0]
        assert len(answer) == 12
        assert lead.max() < 1e-4


@pytest.mark.parametrize("caching", [True, False])
def test_tokens_are_those_of_transformers(model: tuple[str, RandomModel], caching: bool) -> None:
    engine = engine_of(model, enable_prefix_caching=caching)
    for _ in range(2):
        require_theirs(model, tokens(answers(engine, PROMPTS, GREEDY)))
    stats = engine.core.stats()
    assert (stats.prefix_cache.num_hit_tokens > 0) == caching
    assert stats.kv_usage == 0


def test_memory_for_one_request_is_enough_for_all_in_turn(model: tuple[str, RandomModel]) -> None:
    config = engine_of(model).core.kv_config
    need = config.blocks_for(len(PROMPTS[0]) + GREEDY.max_tokens)
    engine = engine_of(model, kv_cache_memory_bytes=(need + 1) * config.bytes_per_block)
    require_theirs(model, tokens(answers(engine, PROMPTS[::-1], GREEDY))[::-1])
    assert engine.core.stats().kv_usage == 0
