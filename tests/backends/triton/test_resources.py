"""The launches compiled for cards that are not here: within shared memory, hardly spilling, and as the page says.

In a process of its own: in this one Triton interprets.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from headstock.backends.triton.resources import BEGIN, END, TARGETS, Usage, layers_for, table
from headstock.backends.triton.tuning import family_of
from support.pages import page

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
MADE_WITH = "Triton 3.9.0"
ENTRY = "headstock.backends.triton.resources"
MOST_STACK = 96
"""Bytes of a thread that may spill."""
KNOWN_STACK = {("gfx1201", "fp32, 256"): 512}
"""Where more does, as the page says: no smaller tile than the smallest."""


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITON_INTERPRET": "0", **environ}
    command = [sys.executable, "-m", ENTRY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=3000, check=False)


def compiled(*arguments: str) -> list[Usage]:
    done = run("--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [Usage(**usage) for usage in json.loads(done.stdout)]


def check(found: Sequence[Usage]) -> None:
    assert found
    for usage in found:
        family = family_of(TARGETS[usage.target])
        assert family is not None
        assert usage.shared_bytes <= family.shared_bytes, usage
        assert usage.stack_bytes <= KNOWN_STACK.get((usage.target, usage.layer), MOST_STACK), usage
        assert 0 < usage.registers <= (255 if usage.target.startswith("sm") else 512), usage


@pytest.mark.parametrize(("target", "layout"), [("sm_90", "nhd"), ("gfx942", "nhd"), ("gfx942", "x_packed")])
def test_a_layer_compiles_for_a_card_of_each_vendor(target: str, layout: str) -> None:
    found = compiled(target, "--layer", "bf16", "--layout", layout)
    assert {usage.kernel for usage in found} == {"write", "decode", "merge", "prefill"}
    check(found)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_every_layer_compiles_for_every_card_and_the_page_says_what_it_takes() -> None:
    found = compiled()
    check(found)
    for target, device in TARGETS.items():
        named = {(usage.layer, usage.kernel) for usage in found if usage.target == target}
        assert {layer for layer, _ in named} == set(layers_for(device))
    text = page("triton.md")
    import triton

    if f"Triton {triton.__version__}" == MADE_WITH:
        assert text.split(BEGIN)[1].split(END)[0].strip() == table(found)


def test_the_page_names_the_triton_it_was_made_with_and_every_target() -> None:
    text = page("triton.md")
    assert MADE_WITH in text
    head = text.split(BEGIN)[1].strip().splitlines()[0]
    assert re.findall(r"[a-z]+_?\d\w*", head) == list(TARGETS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sm_999"], "unknown target sm_999; known are gfx1201"),
        (["--layer", "nope"], "unknown layer nope; known are bf16"),
        (["--page", "nowhere.md"], "nowhere.md is no page with a place for the table"),
        (["--nonsense"], "unrecognized arguments"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_nothing_is_compiled_while_triton_interprets() -> None:
    done = run("sm_90", TRITON_INTERPRET="1")
    assert done.returncode == 2
    assert "TRITON_INTERPRET is set, so nothing is compiled" in done.stderr
