"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import shlex

import pytest

from support.tree import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def commands(program: str) -> list[list[str]]:
    """The commands of the README that begin with `program`, split into words; `inline` ones included."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    lines += re.findall(r"`([a-z]+ [^`]+)`", README)
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == program]


def test_it_opens_with_the_two_commands():
    assert [line.split("#")[0].strip() for line in BLOCKS[0][1].splitlines()] == ["make demo", "make test"]
    assert README.index("```") < 100


def test_make_knows_its_targets_and_variables():
    makefile = (ROOT / "Makefile").read_text()
    for _, *words in commands("make"):
        for word in words:
            variable, is_assignment, _ = word.partition("=")
            assert re.search(rf"^{variable} \?=" if is_assignment else rf"^{word}:.*## ", makefile, re.MULTILINE), word


@pytest.mark.parametrize("words", commands("headstock"), ids=" ".join)
def test_its_commands_run(installed, words):
    assert installed(*words)


def test_its_first_script_answers(installed):
    script = next(block for block in blocks("python") if "LLM(" in block)
    assert "Paris" in installed("python", "-c", script)


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target
