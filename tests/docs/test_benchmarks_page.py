"""The page on measuring engines says what the program does."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from typing import Any

import pytest
import typer

from headstock.benchmarks.cli import app
from headstock.benchmarks.engine.report import SCHEMA, ArmResult, Report
from headstock.benchmarks.engine.workload import LONGEST, LONGEST_PROMPT, SHORTEST
from support.pages import commands, page

PAGE = page("benchmarks.md")
TEXT = " ".join(PAGE.split())
BENCH: Any = typer.main.get_command(app)


def names_after(heading: str) -> set[str]:
    """Names in the first column of the table after `heading`."""
    table = PAGE.partition(heading)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}


@pytest.mark.parametrize("words", commands(PAGE), ids=shlex.join)
def test_its_examples_parse(words):
    bench, name, *rest = words
    assert bench == "bench"
    assert BENCH.commands[name].make_context(name, rest).params["model"] == "smollm2"


def test_its_tables_name_every_field_of_the_document():
    assert names_after("version.\n") == {field.name for field in fields(Report)}
    assert names_after("An arm;") == {field.name for field in fields(ArmResult)}
    assert all(f"`{SCHEMA.format(kind)}`" in PAGE for kind in ("throughput", "latency"))


def test_its_limits_of_conversations_are_those_of_the_program():
    assert f"fewer than {SHORTEST} tokens in either" in TEXT
    assert f"more than {LONGEST_PROMPT} in the prompt or {LONGEST} in all" in TEXT
