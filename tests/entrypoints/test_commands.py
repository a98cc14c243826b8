"""Commands of other packages: listed without being imported, run when called, and no harm to the rest."""

from __future__ import annotations

import pytest

from support.cli import run_cli
from support.plugins import write_distribution

COMMAND = """
from typing import Annotated
import typer

def greet(name: str, loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False) -> None:
    '''Greet NAME.'''
    typer.echo(name.upper() if loud else name)

app = typer.Typer()

@app.command()
def one() -> None:
    typer.echo("one")

@app.command()
def two() -> None:
    raise typer.Exit(7)
"""


def offer(site, name, target, *, version="1.0", summary="", modules=None, command="greet"):
    folder = write_distribution(site, name, version, commands={command: target}, modules=modules)
    if summary:
        (folder / "METADATA").write_text((folder / "METADATA").read_text() + f"Summary: {summary}\n")


def test_it_is_listed_with_its_packages_summary_and_not_imported(site):
    offer(site, "greetings", "greetings:greet", summary="Says hello.", modules={"greetings": "raise SystemExit(9)"})
    result = run_cli("--help")
    assert result.code == 0
    (line,) = [line for line in result.out.splitlines() if "greet " in line]
    assert "Says hello (greetings 1.0)." in line
    assert result.out.index("explain") < result.out.index("greet"), "built-in commands come first"


def test_a_function_becomes_a_command_with_its_options(site):
    offer(site, "greetings", "greetings:greet", modules={"greetings": COMMAND})
    assert run_cli("greet", "Ada").out == "Ada\n"
    assert run_cli("greet", "Ada", "--loud").out == "ADA\n"
    shown = run_cli("greet", "-h").out
    assert "Usage: headstock greet [OPTIONS]" in shown
    assert "Shout." in shown


def test_a_typer_app_keeps_its_commands_and_exit_codes(site):
    offer(site, "greetings", "greetings:app", modules={"greetings": COMMAND})
    assert run_cli("greet", "one").out == "one\n"
    assert run_cli("greet", "two").code == 7


def test_one_that_cannot_be_loaded_says_so_and_the_others_run(site):
    offer(site, "greetings", "greetings:greet", version="0.9", modules={"greetings": "import no_such_module"})
    result = run_cli("greet", "Ada")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        'headstock: command "greet" of greetings 0.9 cannot be loaded: '
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )
    assert run_cli("--version").code == run_cli("backends").code == 0


def test_one_that_is_no_function_says_what_it_is(site):
    offer(site, "greetings", "greetings:greet", modules={"greetings": "greet = 7"})
    result = run_cli("greet", "Ada")
    assert (result.code, result.out) == (2, "")
    assert result.err == 'headstock: command "greet" is 7, neither a function nor a typer.Typer\n'


def test_in_strict_mode_it_raises_what_it_raised(site):
    offer(site, "greetings", "greetings:greet", modules={"greetings": "import no_such_module"})
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        run_cli("greet", "Ada", environ={"HEADSTOCK_PLUGINS_STRICT": "1"})


def test_two_packages_with_one_name_are_an_error_that_names_both(site):
    offer(site, "one", "greetings:greet", modules={"greetings": COMMAND})
    offer(site, "two", "greetings:greet")
    result = run_cli("greet", "Ada")
    assert (result.code, result.err) == (
        2,
        'headstock: command "greet" is offered by one 1.0 and two 1.0; uninstall one\n',
    )
    assert "Offered by one 1.0 and two 1.0." in run_cli("--help").out


def test_a_built_in_name_cannot_be_taken(site):
    offer(site, "thief", "greetings:greet", modules={"greetings": COMMAND}, command="backends")
    assert "sdpa" in run_cli("backends").out


@pytest.mark.parametrize(
    ("flags", "environ", "switch"),
    [
        (("--disable-plugins",), {}, "plugins are switched off"),
        ((), {"HEADSTOCK_DISABLE_PLUGINS": "greetings"}, "greetings is switched off"),
        ((), {"HEADSTOCK_PLUGINS": "others"}, "HEADSTOCK_PLUGINS lets in only others"),
    ],
)
def test_the_switches_of_plugins_hold_for_it(site, flags, environ, switch):
    offer(site, "greetings", "greetings:greet", modules={"greetings": "raise SystemExit(9)"})
    result = run_cli(*flags, "greet", "Ada", environ=environ)
    assert result.code == 2
    assert f'command "greet" of greetings 1.0 is not run: {switch}' in result.err


def test_broken_metadata_do_not_break_the_help(site):
    offer(site, "greetings", "greetings:greet", modules={"greetings": COMMAND})
    for name in ("nameless", "garbled"):
        folder = write_distribution(site, name, commands={name: "x:y"})
        (folder / "METADATA").unlink() if name == "nameless" else (folder / "entry_points.txt").write_text(
            "[headstock.commands]\nno equals sign"
        )
    shown = run_cli("--help").out
    assert "greet" in shown
    assert "garbled" not in shown
