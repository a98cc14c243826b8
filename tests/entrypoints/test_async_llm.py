"""`AsyncLLM` over a small model."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

import headstock
from headstock import LLM, AsyncLLM, SamplingParams
from headstock.core.errors import InvalidInput
from support.pages import blocks, page

SIZES: dict[str, Any] = {"attention_backend": "sdpa", "kv_cache_memory_bytes": 2**22, "max_num_seqs": 8}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_prompts_at_a_time_get_what_llm_gives_them(tiny: str) -> None:
    prompts: list[Any] = ["the fox", [5, 9, 13], {"prompt": "the", "cache_salt": "a"}]
    expected = [output.outputs for output in LLM(tiny, **SIZES).generate(prompts, GREEDY)]

    async def main() -> list[Any]:
        llm = AsyncLLM(tiny, **SIZES)

        async def answer(prompt: Any) -> Any:
            return [output async for output in llm.generate(prompt, GREEDY)][-1].outputs

        found = await asyncio.gather(*map(answer, prompts))
        assert (await llm.stats()).kv_usage == 0
        await llm.close()
        return found

    assert asyncio.run(main()) == expected


def test_a_request_can_be_aborted_by_its_id(tiny: str) -> None:
    async def main() -> Any:
        llm = AsyncLLM(tiny, **SIZES)
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        async with aclosing(llm.generate("the fox", params, "mine", output_kind="delta")) as outputs:
            await anext(outputs)
            await llm.abort("mine")
            last = [output async for output in outputs][-1]
        await llm.close()
        return last

    assert asyncio.run(main()).outputs[0].finish_reason == "abort"


@pytest.mark.parametrize(
    ("options", "field"),
    [({"data_parallel_size": 0}, "data_parallel_size"), ({"max_num_seqs": 0}, "max_num_seqs"), ({"seed": "x"}, "seed")],
)
def test_wrong_options_are_named(tiny: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        AsyncLLM(tiny, **options)
    assert refused.value.field == field


def test_options_that_nobody_knows_are_refused(tiny: str) -> None:
    with pytest.raises(TypeError, match="max_num_sequences"):
        AsyncLLM(tiny, max_num_sequences=3)


def test_it_is_a_public_name() -> None:
    assert "AsyncLLM" in headstock.__all__


def test_the_example_on_the_page_runs(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = blocks(page("server.md"), "python")
    exec(script.text.replace('"smollm2"', f'{tiny!r}, attention_backend="sdpa", kv_cache_memory_bytes=2**22'), {})
    assert capsys.readouterr().out.count("\n") >= 16
