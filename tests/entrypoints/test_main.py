"""The top level: version, help and its cost, interrupts, closed pipes."""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from headstock.core.version import __version__
from headstock.entrypoints.cli import generate
from support.cli import run_cli
from support.plugins import write_distribution

BARE = """
import typer

app = typer.Typer(add_completion=False)

@app.command()
def one(name: str = "x") -> None: "The first command."

@app.command()
def two(name: str = "x") -> None: "The second command."

@app.command()
def three(name: str = "x") -> None: "The third command."

app()
"""
COMMANDS = ((), ("generate",), ("backends",), ("explain",), ("check",))


def process(*words: str, site: Path | None = None, **options) -> subprocess.CompletedProcess[str]:
    env = os.environ | ({"PYTHONPATH": str(site)} if site else {})
    return subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, env=env, **options)


def test_the_version_is_that_of_the_package():
    assert run_cli("--version").out == f"headstock {__version__}\n"
    done = process("-m", "headstock", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"headstock {__version__}\n", "")


def test_without_a_command_the_help_is_shown():
    result = run_cli()
    assert result.code == 2
    assert "Usage: " in result.out + result.err


def test_an_unknown_command_is_refused():
    result = run_cli("generat")
    assert (result.code, result.out) == (2, "")
    assert "No such command 'generat'" in result.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_fits_into_80_columns_with_no_name_cut_short(command, option):
    result = run_cli(*command, option)
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    assert "…" not in result.out


class TestCostOfHelp:
    @pytest.fixture
    def trapped(self, site, tmp_path):
        """A package whose import leaves a mark, in each group of entry points."""
        mark = tmp_path / "imported"
        source = f"open({str(mark)!r}, 'w').close()\nraise SystemExit(9)"
        points = {"trap": "trap:Trap"}
        write_distribution(site, "trap", backends=points, hooks=points, commands=points, modules={"trap": source})
        return site, mark

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_it_imports_neither_torch_nor_a_plugin(self, trapped, command):
        site, mark = trapped
        code = "import atexit, sys; from headstock.entrypoints.cli import main\n"
        code += "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
        done = process("-c", code, *command, "--help", site=site)
        assert done.returncode == 0
        assert ("trap" in done.stdout) == (not command)
        loaded = {name.partition(".")[0] for name in done.stderr.split()}
        assert "headstock" in loaded
        assert not loaded & {"torch", "transformers", "tokenizers", "pluggy", "trap"}
        assert not mark.exists()

    def test_it_takes_at_most_one_and_a_half_times_a_bare_typer_app(self, tmp_path):
        (tmp_path / "bare.py").write_text(BARE)
        programs = {"bare": (str(tmp_path / "bare.py"),), "headstock": ("-m", "headstock")}
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(5):  # in turn, so that both see the same machine; CPU time, so that others count little
            for name, words in programs.items():
                times[name].append(cpu_seconds(*words, "--help"))
        medians = {name: statistics.median(values) for name, values in times.items()}
        assert medians["headstock"] <= 1.5 * medians["bare"], times


def cpu_seconds(*words: str) -> float:
    """User and system time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process(*words).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_an_interrupt_ends_with_130_and_no_traceback(monkeypatch, tiny):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "_stream", interrupted)
    result = run_cli("generate", tiny, "x")
    assert (result.code, result.out) == (130, "")


def test_a_reader_that_goes_away_is_no_error_of_ours(tmp_path):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "headstock", "--help"]
    done = subprocess.run(command, check=False, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("command", [["--version"], ["backends"], ["backends", "--json"]])
def test_an_output_that_cannot_be_written_is_told(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headstock", *command], check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.endswith("headstock: the output cannot be written: No space left on device\n")


def test_closed_streams_are_no_crash():
    closed = [sys.executable, "-c", "import os; os.close(0); os.close(1); os.execv(os.sys.executable, os.sys.argv[1:])"]
    program = [sys.executable, "-m", "headstock"]
    done = subprocess.run([*closed, *program, "backends"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr
    done = subprocess.run([*closed, *program, "generate", "smollm2", "-"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "headstock: prompt: is -, and stdin is closed\n")


def test_the_console_script_is_the_same_program():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="headstock")
    from headstock.entrypoints.cli import main

    assert script.load() is main


def test_threads_wait_without_spinning_unless_the_user_says_otherwise():
    """Beside another busy process OpenMP threads that spin slow to a crawl."""
    code = "import os; from headstock.entrypoints.cli import main\n"
    code += "try: main()\nfinally: print(os.environ['OMP_WAIT_POLICY'])"
    for said, expected in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | said
        done = subprocess.run(
            [sys.executable, "-c", code, "--version"], env=env, check=True, capture_output=True, text=True
        )
        assert re.search(rf"^{expected}$", done.stdout, re.M)
