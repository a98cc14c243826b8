"""The page on the command line says what the command line does, no more and no less."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import typer

from headstock.entrypoints.cli.app import app
from headstock.entrypoints.cli.lazy import BUILT_IN, OWN
from headstock.plugins import VARIABLES
from headstock.selector import PROFILES, read_policy
from support.cli import run_cli
from support.pages import blocks, commands, page
from support.tiny import tiny_folder

PAGE = page("cli.md")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TOP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {name: TOP.get_command(None, name)._real() for name in (*BUILT_IN, *OWN)}
GROUPS = {name: command for name, command in COMMANDS.items() if hasattr(command, "commands")}
COMMANDS |= {f"{group} {name}": sub for group, command in GROUPS.items() for name, sub in command.commands.items()}
PROGRAMS = {"headstock": TOP, **{f"headstock {name}": command for name, command in COMMANDS.items()}}
DYNAMIC = {"peak_flops", "libraries", "logprobs"}
"""Objects whose keys are data."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


def rows(section: str) -> dict[str, list[str]]:
    """Cells of the rows about options, by the names in the first one."""
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and (names := re.findall(r"`(-[\w-]+)`", cells[0])):
            found[" ".join(names)] = cells
    return found


def context(command: Any, **more: Any) -> Any:
    return command.context_class(command, **command.context_settings, **more)


def parameters(command: Any) -> dict[str, Any]:
    """Options of a command by their names, long ones first; `--help` among them."""
    options = [p for p in command.get_params(context(command)) if p.param_type_name == "option"]
    return {" ".join(sorted(p.opts, key=lambda name: -len(name))): p for p in options}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_is_on_the_page_and_nothing_else(program):
    shown = {names for names, option in parameters(PROGRAMS[program]).items() if not option.hidden}
    assert set(rows(SECTIONS[program])) == shown


def test_options_that_the_help_hides_are_on_the_page_too():
    hidden = {opt for c in COMMANDS.values() for p in parameters(c).values() if p.hidden for opt in p.opts}
    assert hidden == {"--enable-prefix-caching"}
    assert all(f"`{opt}`" in PAGE for opt in hidden)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_shows_what_the_page_shows(program):
    shown = run_cli(*program.split()[1:], "--help").out
    for names in rows(SECTIONS[program]):
        assert all(name in shown for name in names.split()), names
    usage = re.search(r"`(headstock \w+ \[OPTIONS\][^`]*)`", SECTIONS[program])
    if usage:
        words = re.findall(r"[A-Z]{4,}", usage[1].replace("[OPTIONS]", ""))
        assert words == [
            p.metavar or p.name.upper() for p in PROGRAMS[program].params if p.param_type_name == "argument"
        ]


@pytest.mark.parametrize("program", COMMANDS)
def test_defaults_are_those_of_the_options(program):
    options = parameters(COMMANDS[program])
    for names, cells in rows(SECTIONS[f"headstock {program}"]).items():
        default = options[names].default
        assert cells[1] == ("" if default is None or default is False else f"`{default}`"), names


def test_every_variable_is_on_the_page_in_its_own_words():
    table = [f"| `{v.name}` | {v.meaning} | {f'`{v.flag}` ' if v.flag else ''}|" for v in VARIABLES if not v.successor]
    assert [line for line in SECTIONS["Environment variables"].splitlines() if line.startswith("| `")] == table


def test_every_profile_is_on_the_page():
    (line,) = re.findall(r"^Profiles: (.*?)\. ", SECTIONS["headstock explain"], re.MULTILINE | re.DOTALL)
    assert re.split(r",\s+", line) == [profile.name for profile in PROFILES]


@pytest.mark.parametrize("words", commands(PAGE), ids=shlex.join)
def test_its_examples_parse(words):
    top = context(TOP, info_name="headstock")
    words = list(words)
    if "|" in words:  # a second command of ours reads what the first one prints
        assert words[words.index("|") + 1] == "headstock"
        test_its_examples_parse(words[words.index("|") + 2 :])
        words = words[: words.index("|")]
    name, _, rest = TOP.resolve_command(top, words)
    if name in GROUPS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    values = COMMANDS[name].make_context(name, list(rest), parent=top).params
    documents = {k: v for k, v in values.items() if k in ("attention_policy", "attention_backend_config")}
    read_policy(**{k: v for k, v in documents.items() if v and v.startswith("{")}, environ={})


@pytest.mark.parametrize("policy", [block.text for block in blocks(PAGE, "json") if block.label == "policy"])
def test_its_policies_choose(model, policy):
    result = run_cli("explain", model, "--attention-policy", policy, "--json")
    assert result.code == 0
    origins = {group["origin"].split(" ")[0] for group in result.json["groups"]}
    assert origins & {"layer", "kind", "phase", "decode:"}
    assert any("reference" in (group["choice"] or "") for group in result.json["groups"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "MODEL", "the fox", "--json", "--logprobs", "1", "--max-tokens", "2"),
        ("embed", "MODEL", "the fox", "--json"),
        ("backends", "--json"),
        ("explain", "MODEL", "--device", "mi300x", "--json"),
    ],
    ids=lambda words: words[0],
)
def test_documents_have_the_shape_on_the_page(model, arguments):
    (example,) = [json.loads(block.text) for block in blocks(PAGE, "json") if block.label == arguments[0]]
    real = run_cli(*(model if word == "MODEL" else word for word in arguments)).json
    assert_same_shape(example, real, arguments[0])


def assert_same_shape(example: Any, real: Any, where: str) -> None:
    """The same keys throughout, and values of the same kinds where both have one."""
    if isinstance(example, dict) and isinstance(real, dict):
        assert list(example) == list(real), where
        for key in example:
            if key not in DYNAMIC:
                assert_same_shape(example[key], real[key], f"{where}.{key}")
    elif isinstance(example, list) and isinstance(real, list):
        if example and real:
            assert_same_shape(example[0], real[0], f"{where}[0]")
    elif example is not None and real is not None:
        numbers = (int, float)
        assert isinstance(real, numbers if isinstance(example, numbers) else type(example)), where


def test_its_script_runs(model, capsys):
    (script,) = blocks(PAGE, "python")
    exec(script.text.replace('"smollm2"', repr(model)), {})
    assert "decode=sdpa,prefill=reference" in capsys.readouterr().out
