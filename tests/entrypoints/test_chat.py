"""`headstock chat`: conversations line by line through a pipe, and at a real terminal."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from headstock import LLM, SamplingParams
from support.cli import run_cli
from support.plugins import write_distribution
from support.terminal import Terminal

SLOW = """
import time
from headstock.backends.sdpa import SdpaBackend

class Slow(SdpaBackend):
    def forward(self, *arguments, **keywords):
        time.sleep(0.05)
        super().forward(*arguments, **keywords)
"""
"""Half a minute for what a tiny model can say at most: whoever interrupts it comes in time."""
LONG = "the fox and the hound went out"
"""Of more tokens than a block, so that the next turn finds it in the cache."""


@pytest.fixture(scope="module")
def llm(chatty) -> LLM:
    return LLM(chatty, attention_backend="sdpa")


@pytest.fixture(scope="module")
def say(llm):
    """What the model answers, in five tokens, at the end of these messages."""
    params = SamplingParams(temperature=0, max_tokens=5)

    def answer(*texts: str, system: str = "") -> str:
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        return llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text

    return answer


def chat(model, *lines: str, options=(), backend="sdpa", **world):
    arguments = ("chat", model, "--attention-backend", backend, "--max-tokens", "5", *options)
    return run_cli(*arguments, stdin="".join(f"{line}\n" for line in lines).encode(), **world)


class TestThroughAPipe:
    def test_every_line_is_a_turn_of_one_conversation(self, chatty, say):
        first = say("the fox")
        second = say("the fox", first, "a hound")
        result = chat(chatty, "the fox", "", "  a hound  ")
        assert (result.code, result.out) == (0, f"{first}\n{second}\n")

    def test_the_figures_of_each_answer_go_to_stderr(self, chatty):
        result = chat(chatty, LONG, "a hound")
        figures = [line for line in result.err.splitlines() if line.startswith("[")]
        plain = r"5 tokens, [\d.]+ tokens/s, TTFT \d+ ms"
        assert re.fullmatch(rf"\[{plain}, cut off at the limit\]", figures[0])
        assert re.fullmatch(rf"\[{plain}, \d+ of \d+ prompt tokens from the cache, cut off at the limit\]", figures[1])

    def test_a_system_message_stands_before_all_others(self, chatty, say):
        result = chat(chatty, "the fox", "/reset", "a hound", options=("--system", "be brief"))
        answers = [say(text, system="be brief") for text in ("the fox", "a hound")]
        assert result.out.splitlines() == [line for text in answers for line in text.splitlines()]
        assert answers[0] != say("the fox")

    def test_a_template_of_ones_own(self, tiny, tmp_path, llm):
        (tmp_path / "t.jinja").write_text("{{ messages[-1].content + eos_token }}")
        result = chat(tiny, "the fox", options=("--chat-template", str(tmp_path / "t.jinja")))
        params = SamplingParams(temperature=0, max_tokens=5)
        assert result.out == llm.generate("the fox<|end|>", params, use_tqdm=False)[0].outputs[0].text + "\n"

    def test_another_backend_computes_the_next_turn_from_the_start(self, chatty, say):
        first = say(LONG)
        second = say(LONG, first, "a hound")
        result = chat(chatty, LONG, "/backend Reference", "a hound")
        assert (result.code, result.out) == (0, f"{first}\n{second}\n")
        assert "attention backend: reference" in result.err
        assert "why: flag (Reference)" in result.err
        assert "from the cache" not in result.err

    def test_a_backend_that_cannot_be_had_leaves_the_one_there_was(self, chatty, say):
        first = say(LONG)
        result = chat(chatty, LONG, "/backend nope", "/backend", "a hound")
        assert result.code == 1
        assert result.out == f"{first}\n{say(LONG, first, 'a hound')}\n"
        told = result.err[result.err.index('attention backend "nope" is not known') :]
        assert "attention backend: sdpa" in told
        assert "prompt tokens from the cache" in told

    def test_a_turn_that_fails_is_told_and_leaves_the_conversation_as_it_was(self, chatty, say):
        result = chat(chatty, "x" * 400, "the fox")
        assert (result.code, result.out.splitlines()[-1]) == (1, say("the fox").splitlines()[-1])
        assert "headstock: " in result.err

    def test_other_commands(self, chatty, say):
        result = chat(chatty, "/help", "/reset", "/what", " /what", "/exit", "never said")
        assert result.code == 1
        assert result.out == say("/what") + "\n"
        assert "/backend NAME" in result.err
        assert "headstock: command: /what is not known; known are /backend, /reset, /help, /exit" in result.err

    def test_programs_get_an_object_for_every_turn_and_its_line(self, chatty, say):
        first = say("the fox")
        lines = ("the fox", "", "/nope", "x" * 400, "  a hound")
        result = chat(chatty, *lines, options=("--json",))
        turns = [json.loads(line) for line in result.out.splitlines()]
        assert result.code == 1
        assert [(turn["line"], turn["prompt"]) for turn in turns] == [(1, "the fox"), (4, "x" * 400), (5, "a hound")]
        assert [turn.get("text") for turn in turns] == [first, None, say("the fox", first, "a hound")]
        assert "max_model_len" in turns[1]["error"]
        assert turns[0].keys() == turns[2].keys() - {"error"}
        assert (turns[0]["finish_reason"], turns[0]["completion_tokens"]) == ("length", 5)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (("--chat-template", "/nowhere/t.jinja"), "chat_template: cannot be read"),
            (("--temperature", "-1"), "temperature: must be at least 0"),
            (("--max-tokens", "0"), "max_tokens: must be from 1"),
            (("--attention-backend", "nope"), 'attention backend "nope" is not known'),
        ],
    )
    def test_wrong_options_are_refused(self, chatty, options, problem):
        result = chat(chatty, "the fox", options=options)
        assert (result.code, result.out) == (2, "")
        assert problem in result.err

    @pytest.mark.parametrize(
        ("template", "problem"),
        [
            (
                "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
                "no system role",
            ),
            ("{{", "the chat template has an error in line 1"),
        ],
    )
    def test_a_template_is_tried_before_weights_are_read(self, tiny, tmp_path, template, problem):
        (tmp_path / "t.jinja").write_text(template)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_bytes((Path(tiny) / "config.json").read_bytes())
        options = ("--system", "x", "--chat-template", str(tmp_path / "t.jinja"))
        result = chat(str(tmp_path / "model"), "the fox", options=options)
        assert result.code == 2
        assert problem in result.err

    def test_bytes_that_are_no_text_are_told(self, chatty):
        result = run_cli("chat", chatty, "--attention-backend", "sdpa", stdin=b"\xff\n")
        assert result.code == 1
        assert "stdin: is not utf-8" in result.err


def test_at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(chatty, tmp_path):
    site = tmp_path / "site"
    write_distribution(site, "snail", backends={"slow": "snail:Slow"}, modules={"snail": SLOW})
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    program = ("-m", "headstock", "chat", chatty, "--attention-backend", "slow", "--ignore-eos")
    with Terminal(*program[:-1], environ={"PYTHONPATH": path}) as terminal:
        terminal.expect("/help lists commands, Ctrl-D leaves\r\n>>> ")
        terminal.type("the fox\r")
        terminal.expect("the fox\r\n")  # the echo of what was typed
        terminal.expect(r"\S")  # the answer's beginning
        terminal.press_until("\x03", r"stopped\][\s\S]*>>> ")
        terminal.press_until("\x03", ">>> ")  # where nothing runs it gives up the line
        terminal.type("/backend sdpa\r")
        assert "attention backend: sdpa" in terminal.expect(r"flag \(sdpa\)\r\n>>> ")
        terminal.type("\x1b[A\r")  # the arrow brings the last line back
        terminal.expect(r"flag \(sdpa\)\r\n>>> ")
        terminal.type("a hound\r")
        assert "tokens/s" in terminal.expect(r"tokens/s, TTFT \d+ ms[^\]]*\]\r\n>>> ")
        terminal.type("\x04")
        terminal.rest()
        assert terminal.process.wait(60) == 0
