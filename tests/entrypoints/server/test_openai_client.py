"""The official client talks to the server, and finds what it expects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.http_server import TEMPLATE, Served
from support.serving import answers
from support.tiny import tiny_engine

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
MESSAGES: list[Any] = [{"role": "user", "content": "the fox"}]


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def test_a_completion_is_what_the_engine_gives(client: openai.OpenAI, folder: ModelFolder) -> None:
    completion = client.completions.create(prompt=[5, 9, 13], logprobs=2, **GREEDY)
    (expected,) = answers(
        tiny_engine(folder), [[5, 9, 13]], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
    )
    (choice,), (own,) = completion.choices, expected.outputs
    assert (choice.text, choice.finish_reason, choice.index) == (own.text, "length", 0)
    assert choice.logprobs is not None
    assert own.logprobs is not None
    assert choice.logprobs.token_logprobs == pytest.approx(
        [entry[token].logprob for entry, token in zip(own.logprobs, own.token_ids, strict=True)]
    )
    assert completion.model == "tiny"
    assert completion.id.startswith("cmpl-")
    assert completion.usage is not None
    assert completion.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "total_tokens": 11,
    }


def test_a_chat_is_a_completion_of_the_rendered_template(client: openai.OpenAI, server: Served) -> None:
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **GREEDY)
    assert "for m in messages" in TEMPLATE
    plain = client.completions.create(prompt="user: the fox\na:", **GREEDY)
    (choice,) = chat.choices
    assert (choice.message.role, choice.message.content) == ("assistant", plain.choices[0].text)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2] * 8
    for entry in choice.logprobs.content:
        assert entry.top_logprobs[0].logprob >= entry.logprob
        assert entry.bytes is not None
    assert chat.usage is not None
    assert plain.usage is not None
    assert chat.usage.prompt_tokens == plain.usage.prompt_tokens


def test_a_streamed_chat_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, seed=3, n=2, model="tiny", max_tokens=12)
    stream = client.chat.completions.create(
        messages=MESSAGES, seed=3, n=2, model="tiny", max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    texts, reasons, roles, usage = ["", ""], ["", ""], ["", ""], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            roles[choice.index] = choice.delta.role or roles[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert roles == ["assistant"] * 2
    assert usage == whole.usage


def test_a_streamed_completion_of_several_prompts_is_the_whole_one(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"prompt": ["the", "fox", [5, 9]], "n": 2, "seed": 1, "model": "tiny", "logprobs": 1}
    whole = client.completions.create(**settings)
    assert [choice.index for choice in whole.choices] == list(range(6))
    texts: dict[int, str] = {}
    logprobs: dict[int, list[Any]] = {}
    for chunk in client.completions.create(stream=True, **settings):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            assert choice.logprobs is not None
            logprobs.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs or [])
    assert texts == {choice.index: choice.text for choice in whole.choices}
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert logprobs[choice.index] == pytest.approx(choice.logprobs.token_logprobs)


def test_a_seed_repeats_an_answer_and_another_gives_another(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"prompt": "the fox", "model": "tiny", "max_tokens": 16, "temperature": 1.5}
    first, again, other = (client.completions.create(seed=s, **settings).choices[0].text for s in (7, 7, 8))
    assert first == again != other


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt(client: openai.OpenAI, stream: bool) -> None:
    settings: dict[str, Any] = {
        "model": "tiny",
        "prompt": [5, 9, 13, 200],
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    answer = client.completions.create(max_tokens=1, stream=stream, **settings)
    chunks = list(answer) if stream else [answer]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    scores = [score for choice in choices if choice.logprobs for score in choice.logprobs.token_logprobs or ()]
    offsets = [offset for choice in choices if choice.logprobs for offset in choice.logprobs.text_offset or ()]
    assert [score is None for score in scores] == [True, False, False, False, False]
    assert offsets == sorted(offsets)
    only = client.completions.create(max_tokens=0, **settings)
    assert only.choices[0].logprobs is not None
    assert only.choices[0].logprobs.token_logprobs == pytest.approx(scores[:-1])
    assert only.usage is not None
    assert only.usage.completion_tokens == 0
    assert "".join(choice.text for choice in choices).startswith(only.choices[0].text)


def test_a_cached_prefix_is_in_the_usage_and_a_salt_keeps_it_apart(client: openai.OpenAI) -> None:
    prompt = list(range(40, 80))
    cached = []
    for salt in ("a", "a", "b"):
        settings = {**GREEDY, "extra_body": {"cache_salt": salt}}
        usage = client.completions.create(prompt=prompt, **settings).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, 32, 0]


def test_logit_bias_decides(client: openai.OpenAI) -> None:
    settings = {**GREEDY, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    choice: Any = client.completions.create(prompt="the", logit_bias={"42": 100}, **settings).choices[0]
    assert choice.token_ids == [42] * 8


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "headstock"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-4o")
    assert missing.value.param == "model"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4o", prompt="a")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")


def test_forty_at_a_time_get_what_they_get_alone(server: Served) -> None:
    async def main() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:

            async def ask(number: int) -> str:
                prompt = [number + 1] * (1 + number)
                answer = await client.completions.create(model="tiny", prompt=prompt, seed=number, max_tokens=12)
                return answer.choices[0].text

            alone = [await ask(number) for number in range(40)]
            return alone, list(await asyncio.gather(*[ask(number) for number in range(40)]))

    alone, together = asyncio.run(main())
    assert alone == together
