"""`LLM.chat`: conversations through the model's template, alone and in lists."""

from __future__ import annotations

import pytest

from headstock import LLM, SamplingParams
from headstock.core.errors import InvalidInput, ModelError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
FOX = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the fox"}]
HOUND = [{"role": "user", "content": "a hound"}]


@pytest.fixture(scope="module")
def llm(chatty) -> LLM:
    return LLM(chatty, block_size=4)


def chat(llm, messages, **options):
    return llm.chat(messages, GREEDY, use_tqdm=False, **options)


def test_it_answers_what_the_template_makes_of_the_messages(llm):
    (output,) = chat(llm, FOX)
    rendered = "system: be brief\nuser: the fox\n|"
    assert output.prompt == rendered
    assert list(output.prompt_token_ids) == llm.tokenizer.encode(rendered, add_special_tokens=False)
    (plain,) = llm.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY, use_tqdm=False)
    assert output.outputs == plain.outputs


def test_a_list_of_conversations_is_answered_in_order(llm):
    both = chat(llm, [FOX, HOUND])
    assert [o.outputs for o in both] == [chat(llm, messages)[0].outputs for messages in (FOX, HOUND)]
    assert [o.prompt for o in chat(llm, (tuple(HOUND),))] == ["user: a hound\n|"]


def test_each_conversation_may_have_parameters_of_its_own(llm):
    short = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    outputs = llm.chat([FOX, HOUND], [GREEDY, short], use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [6, 2]


def test_a_template_of_the_callers_its_variables_and_tools(llm):
    template = "{{ bos_token is defined }} {{ tools[0].name }} {{ mood }} {{ messages[0].content }}"
    (output,) = chat(llm, HOUND, chat_template=template, tools=[{"name": "f"}], chat_template_kwargs={"mood": "gay"})
    assert output.prompt == "False f gay a hound"


def test_the_last_message_can_be_continued(llm):
    messages = [*HOUND, {"role": "assistant", "content": "Well, "}]
    (output,) = chat(llm, messages, continue_final_message=True, add_generation_prompt=False)
    assert output.prompt == "user: a hound\nassistant: Well, "


def test_the_prefix_of_a_conversation_is_found_in_the_cache(llm):
    (first,) = chat(llm, [{"role": "user", "content": "tell me of the fox and of the hound"}])
    (second,) = chat(llm, [{"role": "user", "content": "tell me of the fox and of the hound"}, *HOUND])
    assert second.num_cached_tokens >= len(first.prompt_token_ids) // 4 * 4 - 4


@pytest.mark.parametrize(
    ("messages", "options", "field"),
    [
        ([], {}, "messages"),
        ("hello", {}, "messages"),
        ([FOX, []], {}, "messages"),
        ([FOX, [{"role": "user"}]], {}, "messages[0].content"),
        (FOX, {"chat_template": "{{ raise_exception('no') }}"}, "messages"),
        (FOX, {"chat_template": " {%- if false %}{% endif %}"}, "prompt"),
        (FOX, {"continue_final_message": True}, "continue_final_message"),
        (FOX, {"tools": [object()]}, "tools[0]"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field_and_leaves_nothing(llm, messages, options, field):
    with pytest.raises(InvalidInput) as caught:
        chat(llm, messages, **options)
    assert caught.value.field == field
    assert not llm.engine.has_unfinished_requests()


def test_a_model_without_a_template_says_so_unless_one_is_given(tiny):
    llm = LLM(tiny)
    with pytest.raises(ModelError, match="has no chat template"):
        chat(llm, HOUND)
    assert chat(llm, HOUND, chat_template="{{ messages[0].content }}")[0].prompt == "a hound"
