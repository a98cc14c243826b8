"""Models whose layers have different windows: less memory, the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headstock.backends.cpu import CpuBackend
from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.engine import LLMEngine, Prompt
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.engine import FixedProvider
from support.serving import answers, finish, tokens
from support.tiny import tiny_engine, tiny_folder

SHARED = [(7 * i + 3) % 250 for i in range(60)]
PROMPTS = [[5, 9, 13], SHARED, [7] * 20, [*SHARED[:48], 1, 2, 3], list(range(30, 63))]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
WINDOWS = [None, 5, 12, None]
"""Two sizes of window: with blocks of 4 there are three groups, one of a layer less than the others."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def by_itself(folder: ModelFolder, prompts: list[list[int]], params: SamplingParams) -> list[tuple[int, ...]]:
    """Each prompt alone, over the float64 reference, without a cache of prefixes, all in one block."""
    backend = FixedProvider(ReferenceBackend)
    engine = tiny_engine(folder, backend, windows=WINDOWS, enable_prefix_caching=False, block_size=256)
    assert len(engine.core.kv_config.groups) == 1
    return [tokens(answers(engine, [prompt], params))[0] for prompt in prompts]


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> list[tuple[int, ...]]:
    return by_itself(folder, PROMPTS, GREEDY)


def small(folder: ModelFolder, provider: FixedProvider | None = None, **config: Any) -> LLMEngine:
    return tiny_engine(folder, provider, windows=WINDOWS, **{"block_size": 4, "max_num_batched_tokens": 16, **config})


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    "config",
    [{}, {"max_num_batched_tokens": 256}, {"max_num_batched_tokens": 7, "max_num_seqs": 3}, {"block_size": 3}],
    ids=["chunked", "whole", "small chunks", "blocks of 3"],
)
def test_groups_change_no_token(
    folder: ModelFolder, alone: list[tuple[int, ...]], config: dict[str, Any], caching: bool
) -> None:
    engine = small(folder, enable_prefix_caching=caching, **config)
    assert [group.retention.window for group in engine.core.kv_config.groups] == [None, 5, 12]
    for _ in range(2):
        assert tokens(answers(engine, PROMPTS, GREEDY)) == alone
    assert engine.core.stats().kv_usage == 0
    assert (engine.core.stats().prefix_cache.num_hit_tokens > 0) == caching


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_changes_no_token(folder: ModelFolder, caching: bool) -> None:
    prompts = [[i, *range(10, 17)] for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    block = small(folder).core.kv_config.bytes_per_block
    engine = small(folder, kv_cache_memory_bytes=40 * block, enable_prefix_caching=caching)
    assert tokens(answers(engine, prompts, params)) == by_itself(folder, prompts, params)
    assert engine.core.stats().num_preemptions > 0
    assert engine.core.stats().kv_usage == 0


@pytest.mark.parametrize("backend", [ReferenceBackend, SdpaBackend, CpuBackend])
def test_memory_that_went_to_others_is_not_read(
    folder: ModelFolder, alone: list[tuple[int, ...]], backend: Any
) -> None:
    engine = small(folder, provider=FixedProvider(backend))
    caches = {id(layer.kv_cache): layer.kv_cache for layer in engine.core.worker.runner._attention._layers.values()}
    ids = [engine.add_request(Prompt(token_ids=tuple(prompt)), GREEDY) for prompt in PROMPTS]
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step()}
        pool = engine.core.scheduler.kv.pool
        unfindable = [b for b in pool.free_queue if b not in (pool.index or ())]
        for cache in caches.values():
            for plane in cache.planes.values():
                plane[unfindable] = float("nan")
    assert [done[i].outputs[0].token_ids for i in ids] == alone


def test_a_long_context_takes_far_fewer_blocks_than_one_table_would(folder: ModelFolder) -> None:
    # One full layer to three with a window of 16: four groups, whose blocks have a quarter of the bytes.
    prompt = [(11 * i) % 250 for i in range(230)]
    used = []
    for windows in ([None, 16, 16, 16], [None] * 4):
        engine = tiny_engine(folder, windows=windows, block_size=4, max_num_batched_tokens=32)
        engine.add_request(Prompt(token_ids=tuple(prompt)), GREEDY)
        most = 0
        while engine.has_unfinished_requests():
            engine.step()
            kv = engine.core.scheduler.kv
            most = max(most, kv.config.capacity - kv.pool.num_free_blocks)
        used.append(most * kv.config.bytes_per_block)
    # 244 tokens in 61 blocks, or in 61 + 3 windows that hold at most 13 while 32 tokens of a prompt are computed.
    assert used[1] == 61 * 2048
    assert used[0] <= (61 + 3 * 13) * 512
    assert used[0] / used[1] < 0.42


def test_more_requests_run_at_once_in_the_same_memory(folder: ModelFolder) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    running = []
    for windows in ([None, 16, 16, 16], [None] * 4):
        engine = tiny_engine(
            folder, windows=windows, block_size=4, max_num_batched_tokens=32, kv_cache_memory_bytes=2**18
        )
        for i in range(8):
            engine.add_request(Prompt(token_ids=(i, *[3] * 100)), params)
        most = 0
        while engine.has_unfinished_requests():
            engine.step()
            most = max(most, engine.core.stats().num_running)
        running.append(most)
    assert running[1] <= 4
    assert running[0] == 8


def test_the_log_says_what_each_group_keeps(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        small(folder)
    assert "KV group 0: 2 layers keep every token" in caplog.text
    assert "KV group 1: 1 layer keeps the last 5 tokens" in caplog.text
    assert "KV group 2: 1 layer keeps the last 12 tokens" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        tiny_engine(folder, windows=[None] * 4)
    assert "KV group" not in caplog.text


def test_the_second_request_of_a_shared_prefix_computes_only_its_own_tokens(folder: ModelFolder) -> None:
    engine = small(folder)
    answers(engine, [SHARED], GREEDY)
    (again,) = answers(engine, [[*SHARED[:48], 1, 2, 3]], GREEDY)
    assert again.num_cached_tokens == 48
    stats = engine.core.stats().prefix_cache
    assert (stats.num_query_tokens, stats.num_hit_tokens) == (60 + 51, 48)
    assert sum(stats.num_lost_tokens) == 0


@pytest.mark.parametrize("max_num_batched_tokens", [256, 16])
def test_tokens_are_those_of_transformers(tmp_path: Path, max_num_batched_tokens: int) -> None:
    import transformers

    kinds = ["full_attention", "sliding_attention"] * 2
    model = tiny_folder(tmp_path, layer_types=kinds)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(model.path, attn_implementation="eager")
    assert theirs.config.layer_types == kinds
    engine = tiny_engine(model, block_size=4, max_num_batched_tokens=max_num_batched_tokens)
    assert [group.retention.window for group in engine.core.kv_config.groups] == [None, 5]
    ids = [engine.add_request(Prompt(token_ids=tuple(prompt)), GREEDY) for prompt in PROMPTS]
    done = finish(engine)
    for request_id, prompt in zip(ids, PROMPTS, strict=True):
        answer = list(done[request_id].outputs[0].token_ids)
        with torch.inference_mode():
            logits = theirs(torch.tensor([[*prompt, *answer]])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer
