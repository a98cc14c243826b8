"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import torch

from headstock.core.attention import AttentionSpec, mismatches
from headstock.core.attention.reference import attend_sequence
from support.attention import CPU, Scene, make
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
    said = installed(*words)
    assert said or words[1] == "chat"  # that one answers what is typed, and here nothing is


def test_its_first_script_answers(installed):
    script = next(block for block in blocks("python") if "LLM(" in block)
    assert "Paris" in installed("python", "-c", script)


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target.partition("#")[0]).is_file(), target


def test_its_backend_of_ten_lines_is_right():
    namespace: dict[str, Any] = {}
    exec(next(block for block in blocks("python") if "AttentionBackend" in block), namespace)
    spec = AttentionSpec(num_heads=6, num_kv_heads=2, head_size=16, dtype="float32", block_size=4)
    assert mismatches(spec, namespace["Plain"].capabilities(CPU)) == ()
    scene = Scene(spec=spec, seq_lens=[9, 5, 6])
    queries = [torch.randn(length, 6, 16) for length in (1, 3, 6)]
    out = scene.attend(make(namespace["Plain"], spec), queries)
    for row, ours in enumerate(out.split([1, 3, 6])):
        right, _ = attend_sequence(queries[row], scene.keys[row], scene.values[row], spec)
        torch.testing.assert_close(ours.double(), right, rtol=0, atol=1e-6)
