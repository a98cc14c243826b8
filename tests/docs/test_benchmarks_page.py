"""The page on measuring engines says what the program does."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from typing import Any

import pytest
import typer

from headstock import LLM, SamplingParams
from headstock.benchmarks.cli import app
from headstock.benchmarks.engine.report import SCHEMA, ArmResult, Report
from headstock.benchmarks.engine.workload import LONGEST, LONGEST_PROMPT, SHORTEST
from headstock.core.live import Tape, taping
from headstock.core.trace import Recorder, recording
from headstock.entrypoints.cli.app import app as top
from support.pages import commands, page
from support.tiny import tiny_folder

PAGE = page("benchmarks.md")
TEXT = " ".join(PAGE.split())
BENCH: Any = typer.main.get_command(app)
TOP: Any = typer.main.get_command(top)


def names_after(heading: str) -> set[str]:
    """Names in the first column of the table after `heading`."""
    table = PAGE.partition(heading)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}


@pytest.mark.parametrize("words", commands(PAGE), ids=shlex.join)
def test_its_examples_parse(words):
    program, *rest = words
    if program == "bench":
        name, *rest = rest
        assert BENCH.commands[name].make_context(name, rest).params["model"] == "smollm2"
    else:
        assert TOP.get_command(None, program)._real().make_context(program, rest).params["profile"]


def test_its_tables_name_every_field_of_the_document():
    assert names_after("version.\n") == {field.name for field in fields(Report)}
    assert names_after("An arm;") == {field.name for field in fields(ArmResult)}
    assert all(f"`{SCHEMA.format(kind)}`" in PAGE for kind in ("throughput", "latency"))


def test_its_limits_of_conversations_are_those_of_the_program():
    assert f"fewer than {SHORTEST} tokens in either" in TEXT
    assert f"more than {LONGEST_PROMPT} in the prompt or {LONGEST} in all" in TEXT


def test_its_table_has_every_span_of_a_trace(tmp_path):
    """What a tiny model leaves behind, and `write KV` and `attention` in one line."""
    llm = LLM(str(tiny_folder(tmp_path).path))
    with recording(Recorder()) as recorder, taping(Tape(tmp_path / "tape", tensors=True)):
        llm.generate("the fox", SamplingParams(max_tokens=2), use_tqdm=False)
    table = PAGE.partition("| span | is |\n|---|---|\n")[2].partition("\n\n")[0]
    listed = [name for line in table.splitlines() for name in re.findall(r"`([\w ]+)`", line.split("|")[1])]
    assert set(listed) == {span.name for span in recorder.spans}
