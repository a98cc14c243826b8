"""The page on writing a backend, followed to the letter."""

from __future__ import annotations

import re
import sys
from dataclasses import fields

import pytest

from headstock.core.attention import AttentionBatch, Capabilities
from headstock.entrypoints.compose import installed_plugins
from support.cli import run_cli
from support.pages import blocks, commands, page
from support.plugins import forget_modules
from support.tiny import tiny_folder
from support.wheels import run

PAGE = page("write-a-backend.md")
FILES = {label: [b.text for b in blocks(PAGE) if b.label == label] for label in {b.label for b in blocks(PAGE)} - {""}}
PYTHON = [block.text for block in blocks(PAGE, "python") if not block.label]
PROMPT = "the fox and the hound"


def install(folder, files):
    """Write the project as the page does, and install it; where it then is."""
    project, site = folder / "project", folder / "site"
    (project / "my_attention").mkdir(parents=True)
    (project / "my_attention" / "__init__.py").touch()
    for path, text in files.items():
        (project / path).write_text(text)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", site, project)
    return site


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """As the first section of the page leaves it."""
    files = {path: FILES[path][0] for path in ("pyproject.toml", "my_attention/backend.py")}
    return install(tmp_path_factory.mktemp("first"), files)


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """As it is at the end: Python files stand on the page as a whole, pyproject.toml grows."""
    files = {path: texts[-1] for path, texts in FILES.items()}
    return install(tmp_path_factory.mktemp("last"), files | {"pyproject.toml": "\n".join(FILES["pyproject.toml"])})


@pytest.fixture
def begun(first, monkeypatch):
    monkeypatch.syspath_prepend(str(first))
    yield
    forget_modules(first)


@pytest.fixture
def finished(last, monkeypatch):
    monkeypatch.syspath_prepend(str(last))
    yield
    forget_modules(last)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """Full attention throughout, like smollm2."""
    return str(tiny_folder(tmp_path_factory.mktemp("full"), use_sliding_window=False).path)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("windowed")).path)


def answer(model, *options):
    result = run_cli("generate", model, PROMPT, "--max-tokens", "16", "--ignore-eos", "--json", *options)
    assert result.code == 0, result.err
    return result.json["outputs"][0]["outputs"][0]["token_ids"], result.json["attention"]["choices"], result.err


def listed():
    return {row["name"]: row for row in run_cli("backends", "--json").json["backends"]}


class TestTenLines:
    def test_its_class_is_about_ten_lines(self):
        body = FILES["my_attention/backend.py"][0].partition("class Plain")[2].splitlines()
        assert sum(bool(line.strip()) for line in body[1:]) <= 13

    @pytest.mark.usefixtures("begun")
    def test_it_is_listed_with_its_package_and_without_a_rank(self):
        row = listed()["plain"]
        assert (row["verdict"], row["rank"]) == ("available", None)
        assert (row["distribution"], row["version"]) == ("my-attention", "0.1.0")

    @pytest.mark.usefixtures("begun")
    def test_the_commands_of_the_page_run(self, model):
        found = commands(PAGE)
        assert [words[0] for words in found] == ["backends", "explain", "generate", "check"]
        results = [run_cli(*(model if word == "smollm2" else word for word in words)) for words in found]
        assert [result.code for result in results] == [0, 0, 0, 0], [result.err for result in results]
        answered, checked = results[2:]
        assert re.search(
            r"^attention backend: plain \(my-attention 0.1.0\) for all 4 layers; why: flag", answered.err, re.M
        )
        assert "plain conforms: " in checked.out

    @pytest.mark.usefixtures("begun")
    def test_its_answer_is_the_references(self, model):
        ours, choices, _ = answer(model, "--attention-backend", "plain")
        assert [choice["backend"] for choice in choices] == ["plain"]
        assert ours == answer(model, "--attention-backend", "reference")[0]

    @pytest.mark.usefixtures("begun")
    def test_the_pages_own_comparison_finds_no_difference(self, model, capsys):
        exec(PYTHON[0].replace('"smollm2"', repr(model)), {})
        differences = [float(line) for line in capsys.readouterr().out.split()]
        assert len(differences) == 3
        assert max(differences) < 1e-3

    @pytest.mark.usefixtures("begun")
    def test_a_window_is_kept_away_from_it_with_the_reason_on_the_page(self, windowed):
        result = run_cli("generate", windowed, PROMPT, "--attention-backend", "plain")
        assert result.code == 2
        reason = "window: asked (4, 0), offered nothing"
        assert reason in result.err
        assert reason in PAGE

    @pytest.mark.usefixtures("begun")
    def test_it_can_be_registered_without_a_package(self):
        from my_attention.backend import Plain

        try:
            exec(PYTHON[1], {"Plain": Plain})
            assert installed_plugins().backends.find("mine").load() is Plain
        finally:
            installed_plugins.cache_clear()


class TestGrownUp:
    @pytest.mark.usefixtures("finished")
    def test_it_is_chosen_by_rank_and_agrees_with_the_reference(self, model, windowed):
        for folder in (model, windowed):
            ours, choices, err = answer(folder)
            assert [choice["backend"] for choice in choices] == ["plain"]
            assert re.search(r"why: ranked \(1 of \d+ on cpu\)", err)
            assert ours == answer(folder, "--attention-backend", "reference")[0]
        assert listed()["plain"]["rank"] == 1

    @pytest.mark.usefixtures("finished")
    def test_it_serves_a_phase_or_a_kind_of_layer(self, windowed):
        right = answer(windowed, "--attention-backend", "reference")[0]
        for options in (("--decode-attention-backend", "plain"), ("--attention-policy", '{"window": "plain"}')):
            assert options[0] in PAGE
            ours, choices, _ = answer(windowed, "--attention-backend", "sdpa", *options)
            assert any("plain" in choice["backend"] for choice in choices)
            assert ours == right

    @pytest.mark.usefixtures("finished")
    def test_its_options_reach_it_and_wrong_ones_are_refused(self, model):
        (line,) = re.findall(r"`--attention-backend-config '(.*?)'`", PAGE)
        assert answer(model, "--attention-backend-config", line)[0] == answer(model)[0]
        for wrong, problem in (
            ('{"plain": {"accumulate": "int8"}}', "accumulate: must be float32 or float64, not 'int8'"),
            ('{"plain": {"speed": 1}}', "option 'speed': is not known; known are accumulate"),
        ):
            result = run_cli("generate", model, PROMPT, "--attention-backend-config", wrong)
            assert result.code == 2
            assert problem in result.err

    @pytest.mark.usefixtures("finished")
    def test_what_it_refuses_is_explained(self, tmp_path):
        tiny_folder(tmp_path, head_dim=512)
        result = run_cli("explain", str(tmp_path), "--json")
        _, window = result.json["groups"]
        refused = next(c for c in window["candidates"] if c["backend"] == "plain")
        assert refused["reasons"] == ["window: asked heads of 512, offered heads of up to 256"]


def test_every_capability_is_on_the_page():
    section = PAGE[PAGE.index("## What to declare") : PAGE.index("## Work once a step")]
    assert {f.name for f in fields(Capabilities)} - set(re.findall(r"`(\w+)`", section)) == set()


def test_every_field_of_a_batch_is_on_the_page():
    section = PAGE[PAGE.index("## What `forward` is given") : PAGE.index("## What to declare")]
    assert {f.name for f in fields(AttentionBatch)} - set(re.findall(r"`(\w+)`", section)) == set()
