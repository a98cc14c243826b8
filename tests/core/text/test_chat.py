from __future__ import annotations

import json

import pytest

from headstock.core.errors import InvalidInput, ModelError
from headstock.core.text import ChatTemplate
from support.vocabularies import byte_fallback, byte_level, write_folder

CHATML = """{%- for message in messages -%}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    <|im_start|>assistant
{% endif %}
"""
ALTERNATING = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate, got ' ~ message['role']) }}
{% endif %}
  {% if message['role'] == 'user' %}
[INST] {{ message['content'] | trim }} [/INST]{% else %}
{% generation %}{% set said = message['content'] %}{{ said }}{{ eos_token }}{% endgeneration %}{{ said is defined }}
  {% endif %}
{% endfor %}"""
TOOLS = """{% set ns = namespace(count=0, last=none) %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}{% else %}no tools & <none>
{% endif %}{% for message in messages %}{% if message.role == 'stop' %}{% break %}{% endif %}
{% if message.tool_calls is defined %}{{ message.tool_calls | tojson }}{{ message.content is defined }}
{%- continue %}{% endif %}
{% set ns.count = ns.count + 1 %}{{ ns.count }}:{{ message.content | tojson }}{{ dict(a=1) }}
{% endfor %}{{ pad_token }}{{ enable_thinking is defined and enable_thinking }}"""
PARTS = """{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}
{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}
{% endfor %}{% endif %}{% endfor %}{{ strftime_now('%Y') }}"""

HELLO = [{"role": "user", "content": 'Héllo <b> & "you"\n'}]
DIALOGUE = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "  More?  "}]
UNFINISHED = [*HELLO, {"role": "assistant", "content": " Well, that is "}]
TRIMMED = "{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}\n{% endfor %}"
CALLS = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "é": 1.5}]}, *HELLO,
         {"role": "stop", "content": "x"}, *HELLO]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "description": "a < b"}}
TWO = [{"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "text", "text": "here"}]}]


@pytest.mark.parametrize(
    ("template", "messages", "options"),
    [
        (CHATML, HELLO, {}),
        (CHATML, DIALOGUE, {"add_generation_prompt": False}),
        (CHATML, [{"role": "system", "content": "Rhyme."}, *DIALOGUE], {}),
        (ALTERNATING, DIALOGUE, {}),
        (TOOLS, CALLS, {}),
        (TOOLS, CALLS, {"tools": [TOOL], "enable_thinking": True}),
        (PARTS, TWO, {}),
        (PARTS, HELLO, {}),
        (CHATML, UNFINISHED, {"continue_final_message": True, "add_generation_prompt": False}),
        (ALTERNATING, UNFINISHED, {"continue_final_message": True, "add_generation_prompt": False}),
        (TRIMMED, UNFINISHED, {"continue_final_message": True, "add_generation_prompt": False}),
        (PARTS, TWO, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
def test_a_prompt_is_rendered_as_in_transformers(tmp_path, template, messages, options):
    from transformers import PreTrainedTokenizerFast

    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    write_folder(tmp_path, byte_fallback(), tokenizer_config=config)
    peer = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    theirs = peer.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **options})
    assert ChatTemplate.from_folder(tmp_path).render(messages, **options) == theirs


def test_the_template_file_wins_over_the_config(tmp_path):
    write_folder(tmp_path, byte_level(), tokenizer_config={"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new é", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("{{ documents[0].text }}")
    template = ChatTemplate.from_folder(tmp_path)
    assert template.render(HELLO) == "new é"
    assert template.render(HELLO, name="rag", documents=[{"text": "found"}]) == "found"
    with pytest.raises(InvalidInput, match=r"chat_template: 'rga' is not known; the model has: default, rag"):
        template.render(HELLO, name="rga")


def test_tools_choose_the_template_named_for_them(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write_folder(tmp_path, byte_level(), tokenizer_config={"chat_template": named})
    template = ChatTemplate.from_folder(tmp_path)
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[TOOL]) == "tools"
    assert template.render(HELLO, tools=[TOOL], name="default") == "plain"


@pytest.mark.parametrize(
    "template", [5, {"default": "x"}, ["x"], [{"name": "default"}], [{"name": 1, "template": "x"}]]
)
def test_a_template_that_is_no_text_is_the_models_fault(tmp_path, template):
    write_folder(tmp_path, byte_level(), tokenizer_config={"chat_template": template})
    with pytest.raises(ModelError, match="chat_template must be text, or a list of named texts"):
        ChatTemplate.from_folder(tmp_path)


def test_a_model_without_template_says_so(tmp_path):
    with pytest.raises(ModelError, match="has no chat template"):
        ChatTemplate.from_folder(write_folder(tmp_path, byte_level()))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hello", "messages"),
        ({"role": "user"}, "messages"),
        ([], "messages"),
        (["hello"], "messages[0]"),
        ([*HELLO, {"content": "x"}], "messages[1].role"),
        ([*HELLO, {"role": 3, "content": "x"}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "x"}]}], "messages[0].content[1]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "a\udc00"}], "messages[0].content"),
        ([{"role": "user", "content": "x", "extra": {"a": [object()]}}], "messages[0].extra.a[0]"),
        ([{"role": "user", "content": "x", "extra": float("nan")}], "messages[0].extra"),
        ([{"role": "user", "content": "x", 3: 4}], "messages[0]"),
    ],
)
def test_a_wrong_message_is_refused_by_field(messages, field):
    with pytest.raises(InvalidInput) as caught:
        ChatTemplate({"default": CHATML}, {}).render(messages)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TRIMMED, "[user] See \nhere\n"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "See \nhere"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", "See here"),
        ("{% set said = messages[0].content %}{% for p in said | list %}{{ p.text }}{% endfor %}", "See here"),
    ],
)
def test_parts_are_lines_unless_the_template_goes_through_them(template, expected):
    assert ChatTemplate({"default": template}, {}).render(TWO) == expected


def test_parts_can_be_continued_as_one_text():
    said = ChatTemplate({"default": TRIMMED}, {}).render(TWO, continue_final_message=True, add_generation_prompt=False)
    assert said == "[user] See \nhere"


def test_the_complaint_of_a_template_reaches_the_user():
    with pytest.raises(InvalidInput, match="roles must alternate, got assistant"):
        ChatTemplate({"default": ALTERNATING}, {}).render([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize("broken", ["{% for %}", "{{ x", "{% generation %}"])
def test_a_broken_template_is_the_model_s_fault(broken):
    with pytest.raises(ModelError, match="error in line 1"):
        ChatTemplate({"default": broken}, {}).render(HELLO)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ dict.__class__.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace(_x=1) %}",
        "{{ raise_exception.__globals__.json }}",
    ],
)
def test_a_template_cannot_reach_the_interpreter(attack):
    with pytest.raises(InvalidInput, match="refuses"):
        ChatTemplate({"default": attack}, {}).render(HELLO)


@pytest.mark.parametrize(
    ("template", "messages", "opened", "problem"),
    [
        (CHATML, UNFINISHED, True, "needs add_generation_prompt=False"),
        (TOOLS, CALLS[:2], False, "the last message has no text to continue"),
        ("{{ messages[0].content }}", UNFINISHED, False, "does not show the last message"),
    ],
)
def test_what_cannot_be_continued_is_refused(template, messages, opened, problem):
    with pytest.raises(InvalidInput, match=f"continue_final_message: .*{problem}"):
        ChatTemplate({"default": template}, {}).render(
            messages, continue_final_message=True, add_generation_prompt=opened
        )


def test_messages_are_left_as_they_were():
    messages = json.loads(json.dumps(CALLS))
    ChatTemplate({"default": TOOLS}, {}).render(messages)
    assert messages == CALLS
    unfinished = json.loads(json.dumps(UNFINISHED))
    ChatTemplate({"default": CHATML}, {}).render(unfinished, continue_final_message=True, add_generation_prompt=False)
    assert unfinished == UNFINISHED
