"""smollm2, greedy in float32, equals transformers token for token, however it is served.

The expected answers are in data/golden.json, recorded from transformers (record_golden.py). The default group serves
all prompts once, and a part of them, cut at 24 tokens, in every way; the heavy group serves all of them whole in every
way, and asks transformers again.
"""

from __future__ import annotations

from typing import Any

import pytest

from headstock import LLM
from headstock.core.text import ChatTemplate
from support import automatic
from support.parity import RECORDS, assert_parity, parity_params, prompts_of

PART = [0, 5, 10, 14, 17]
"""Short, long, digits, Unicode and chat."""
PART_TOKENS = 24
WAYS: dict[str, dict[str, Any]] = {
    "blocks of 1": {"block_size": 1},
    "blocks of 8": {"block_size": 8},
    "blocks of 32": {"block_size": 32},
    "chunks of 7 tokens": {"max_num_batched_tokens": 7, "max_num_seqs": 7},
    "no prefix cache": {"enable_prefix_caching": False},
    "reference": {"attention_backend": "reference"},
    "sdpa": {"attention_backend": "sdpa"},
    "cpu": {"attention_backend": "cpu"},
    "mixed by layer": {"attention_policy": {"0-9,20": "reference"}},
    "mixed by phase": {"decode_attention_backend": "reference", "prefill_attention_backend": "sdpa"},
    "mixed by phase the other way": {"attention_policy": {"prefill": "reference", "decode": "sdpa"}},
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", dtype="float32")


def serve(llm: LLM, records: list[dict[str, Any]], max_tokens: int = 64) -> None:
    outputs = llm.generate(prompts_of(records), parity_params(max_tokens), use_tqdm=False)
    assert_parity(outputs, records, max_tokens)


def test_all_twenty_prompts_together_cold_and_warm(llm: LLM) -> None:
    serve(llm, RECORDS)
    before = llm.stats().num_cached_tokens
    part = [RECORDS[i] for i in PART]
    serve(llm, part, PART_TOKENS)
    # Whole blocks of 16, and never a prompt's last token.
    reused = sum((len(record["prompt_token_ids"]) - 1) // 16 * 16 for record in part)
    assert llm.stats().num_cached_tokens - before == reused > 0


@pytest.mark.parametrize("index", [0, 10, 17])
def test_a_prompt_alone_gives_what_it_gave_among_others(llm: LLM, index: int) -> None:
    serve(llm, [RECORDS[index]], PART_TOKENS)


def test_prompts_given_as_text_are_tokenised_alike(llm: LLM) -> None:
    import json
    from pathlib import Path

    prompts = json.loads((Path(__file__).parent / "data" / "prompts.json").read_text())
    template = ChatTemplate.from_folder(llm.folder.path)
    for prompt, record in zip(prompts, RECORDS, strict=True):
        if "messages" in prompt:
            text = template.render(prompt["messages"], add_generation_prompt=True)
        else:
            text = prompt["text"]
        assert llm.engine.inputs.tokenizer.encode(text) == record["prompt_token_ids"]


@pytest.mark.parametrize("way", WAYS)
def test_the_way_of_serving_changes_nothing(way: str) -> None:
    check_way(way, [RECORDS[i] for i in PART], PART_TOKENS)


@pytest.mark.heavy
@pytest.mark.parametrize("way", WAYS)
def test_the_way_of_serving_changes_nothing_for_all_prompts(way: str) -> None:
    check_way(way, RECORDS, 64)


def check_way(way: str, records: list[dict[str, Any]], max_tokens: int) -> None:
    if way == "cpu" and automatic.BACKEND != "cpu":
        pytest.skip("NOT TESTED: the kernels of cpu do not compile here")
    llm = LLM("smollm2", dtype="float32", **WAYS[way])
    serve(llm, records, max_tokens)
    backends = {choice.backend for choice in llm.attention.choices.values()}
    expected = {
        "reference": {"reference"},
        "sdpa": {"sdpa"},
        "cpu": {"cpu"},
        "mixed by layer": {"reference", automatic.BACKEND},
        "mixed by phase": {"decode=reference,prefill=sdpa"},
        "mixed by phase the other way": {"decode=sdpa,prefill=reference"},
    }
    assert backends == expected.get(way, {automatic.BACKEND})
    assert llm.attention.block_size == WAYS[way].get("block_size", 16)
    if way == "chunks of 7 tokens":
        assert llm.stats().num_mixed_steps > 0
    assert llm.stats().kv_usage == 0


def test_a_cache_too_small_for_all_preempts_and_changes_nothing() -> None:
    records = [RECORDS[i] for i in PART]
    longest = max(len(r["prompt_token_ids"]) for r in records) + PART_TOKENS
    block_bytes = 16 * 30 * 2 * 3 * 64 * 4  # tokens, layers, K and V, KV heads, head size, float32
    llm = LLM(
        "smollm2",
        dtype="float32",
        max_model_len=longest,
        kv_cache_memory_bytes=(longest // 16 + 6) * block_bytes,
        enable_prefix_caching=False,
    )
    serve(llm, records, PART_TOKENS)
    assert llm.stats().num_preemptions > 0


@pytest.mark.heavy
def test_the_golden_answers_are_still_transformers_own() -> None:
    """Recorded anew for a few prompts, with the installed transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    from headstock.core.model import resolve_model

    model = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2").path, dtype=torch.float32).eval()
    for record in (RECORDS[i] for i in PART):
        prompt = torch.tensor([record["prompt_token_ids"]])
        with torch.inference_mode():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=64)
        assert out[0, prompt.shape[1] :].tolist() == record["output_token_ids"]
