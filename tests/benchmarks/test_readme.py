"""The page about measurements says what the program does."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from headstock.benchmarks import interleave, load
from headstock.benchmarks.cli import app
from headstock.benchmarks.kernels.check import TOLERANCE
from headstock.benchmarks.kernels.command import ROUNDS
from headstock.benchmarks.kernels.report import SCHEMA, Measurement, Row
from headstock.benchmarks.kernels.shapes import choose, default_grid
from support.pages import commands
from support.tree import ROOT

PAGE = (ROOT / "benchmarks/README.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())
BENCH: Any = typer.main.get_command(app)


def fields(heading: str) -> set[str]:
    """Names in the first column of the table after `heading`."""
    table = PAGE.partition(heading)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}


@pytest.mark.parametrize("words", commands(PAGE), ids=shlex.join)
def test_its_examples_parse(words):
    bench, kernels, *rest = words
    assert (bench, kernels) == ("bench", "kernels")
    values = BENCH.commands["kernels"].make_context("kernels", rest).params
    assert choose(values["shapes"], values["phase"], default_grid())


def test_its_labels_are_shapes():
    labels = re.findall(r"^\| `(\w+:[^`]+)`", PAGE, re.MULTILINE)
    assert {shape.phase for label in labels for shape in choose(label, "all", ())} == {"decode", "prefill", "chunk"}


def test_its_tables_name_every_field_of_the_document():
    assert fields("A row:") == set(Row.__slots__) | {"sizes", "layers"}
    assert fields("A measurement;") == set(Measurement.__slots__)
    assert f"`{SCHEMA}`" in PAGE


def test_its_figures_are_those_of_the_program():
    for figure in (
        f"as many calls as fill {interleave.TURN_SECONDS * 1000:g} ms, at most {interleave.MOST_CALLS},",
        f"below {interleave.WARM_SECONDS * 1000:g} ms follow an uncounted one",
        f"up to {ROUNDS} rounds, at least {interleave.LEAST_ROUNDS}; {interleave.LEAST_SLOW_ROUNDS} for calls "
        f"above {interleave.SLOW_SECONDS} s; a call above {interleave.ENDLESS_SECONDS:g} s is not repeated",
        f"more than {load.DISTURBED} of a CPU",
        "1e-4 of the largest value in float32 and 3e-2 in bfloat16",
    ):
        assert figure in TEXT
    assert (TOLERANCE["float32"], TOLERANCE["bfloat16"]) == (1e-4, 3e-2)


def test_its_lines_are_not_too_long():
    """Results are the program's own output."""
    written = PAGE.partition("<!-- results -->")[0]
    assert max(len(line) for line in written.splitlines() if not line.startswith("|")) <= 135


def test_there_is_a_place_for_results():
    assert PAGE.index("<!-- results -->") < PAGE.index("<!-- end of results -->")
    assert PAGE.index("<!-- engine results -->") < PAGE.index("<!-- end of engine results -->")
