"""The page on the conformance kit says what the kit does. Its table of mutants is held by tests/conformance."""

from __future__ import annotations

import json
import re
from pathlib import Path

from headstock.entrypoints.cli.app import app
from headstock.plugins.conformance import CONVENTIONS, Outcome, Report, Subject, parse_problem
from headstock.plugins.conformance.check import GENERATED
from support.pages import blocks, commands, page

PAGE = page("conformance.md")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_convention_is_on_the_page_in_its_own_words():
    rows = re.findall(r"^\| ([\w-]+) \| (.*) \|$", section("The conventions"), re.MULTILINE)[1:]
    assert dict(rows) == CONVENTIONS
    assert [name for name, _ in rows] == list(CONVENTIONS)


def test_problems_on_the_page_can_be_read():
    texts = re.findall(r"(?:mixed:|problem: |`)(rows=[^\s`]+)", PAGE)
    assert len(texts) >= 5
    for text in texts:
        assert str(parse_problem(text)) == text


def test_the_document_has_the_shape_on_the_page():
    (example,) = [json.loads(block.text) for block in blocks(PAGE, "json")]
    outcome = Outcome(case="keys:decode", convention="keys", status="passed")
    words = dict.fromkeys(("backend", "package", "source_hash", "device", "when", "command"), "")
    about = {**words, "level": "quick", "seed": 0}
    real = Report(**about, outcomes=(outcome,)).to_dict()
    assert list(real) == list(example)
    for part in ("conventions", "cases"):
        assert list(real[part][0]) == list(example[part][0])


def test_full_has_so_many_times_the_cases_of_quick():
    assert GENERATED["full"] / GENERATED["quick"] == 4000 / 300
    assert "thirteen\ntimes as many made-up cases" in PAGE


def test_its_commands_are_known():
    import typer

    check = typer.main.get_command(app).get_command(None, "check")._real()
    options = {opt for p in check.params for opt in p.opts}
    used = {word for words in commands(PAGE) for word in words if word.startswith("--")}
    assert used <= options


def test_its_pytest_options_are_the_plugins():
    from headstock.entrypoints import pytest_plugin

    source = Path(pytest_plugin.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"--headstock-\w+", PAGE)) == set(re.findall(r'addoption\("(--headstock-\w+)"', source))


def test_its_script_uses_names_that_exist():
    (script,) = blocks(PAGE, "python")
    assert "Subject(name=" in script.text
    compile(script.text, "page", "exec")
    assert Subject.__name__ in script.text
