"""`headstock check`: reports, exit codes, and backends that crash, hang and print."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from headstock.entrypoints import check_process
from headstock.plugins.conformance import CONVENTIONS
from support.cli import run_cli
from support.plugins import write_distribution
from support.tree import ROOT

BACKENDS = """
import ctypes, os, sys, time
sys.path.insert(0, {tests!r})
from conformance.mutants.base import Plain
from headstock.core.attention import Availability, Capabilities, InvalidInput
from dataclasses import dataclass

class WindowOneMore(Plain):
    def window(self):
        left, right = super().window()
        return left + 1 if left >= 0 else left, right

class Crashes(Plain):
    def capped(self, logits):
        print("from the kernel")
        if self.spec.softcap:
            ctypes.string_at(0)
        return logits

class Hangs(Plain):
    def capped(self, logits):
        if self.spec.softcap:
            time.sleep(60)
        return logits

class EndsTheProgram(Plain):
    def forward(self, layer, query, **rest):
        raise SystemExit(0)

class DiesAtOnce(Plain):
    @classmethod
    def capabilities(cls, device):
        os._exit(3)

class Away(Plain):
    @classmethod
    def availability(cls):
        return Availability(reasons=("its library is not installed",))

class Nothing(Plain):
    @classmethod
    def capabilities(cls, device):
        return Capabilities()

class RefusesAll(Plain):
    @classmethod
    def refusals(cls, spec, device):
        raise RuntimeError("not today")

@dataclass(frozen=True)
class Options:
    splits: int
    def __post_init__(self):
        if self.splits < 1:
            raise InvalidInput("splits", "must be at least 1")

class Configured(Plain):
    Options = Options
    def scaled(self, logits):
        return super().scaled(logits) * self.options.splits
"""
NAMES = (
    "WindowOneMore",
    "Crashes",
    "Hangs",
    "EndsTheProgram",
    "DiesAtOnce",
    "Away",
    "Nothing",
    "RefusesAll",
    "Configured",
)


@pytest.fixture
def site(site):
    """With a package that offers all of the above, by the names of their classes."""
    source = BACKENDS.format(tests=str(ROOT / "tests")).replace(
        "Capabilities, InvalidInput", "Capabilities\nfrom headstock.core.errors import InvalidInput"
    )
    write_distribution(site, "kernels", backends={n: f"kernels:{n}" for n in NAMES}, modules={"kernels": source})
    return site


def test_a_backend_that_conforms_ends_in_0_and_a_line_a_convention():
    result = run_cli("check", "sdpa", "--case", "[cs]*:*e*")
    assert result.code == 0
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.split()[:1]}
    assert "ok" in lines["causal"]
    assert "sinks: offered nothing" in lines["sinks"]
    assert "sdpa conforms: " in result.out
    assert "sdpa (headstock " in result.err


@pytest.mark.usefixtures("site")
def test_a_wrong_one_ends_in_1_with_the_smallest_failure_and_how_to_repeat_it(tmp_path):
    junit = tmp_path / "report.xml"
    result = run_cli("check", "windowonemore", "--case", "window:of-[24]*", "--junit", str(junit))
    assert result.code == 1
    assert "FAILED" in result.out
    assert CONVENTIONS["window"] in result.out
    assert "WindowOneMore does not conform: " in result.out
    command = next(line.split(None, 1)[1] for line in result.out.splitlines() if "repeat:" in line)
    assert command == "headstock check windowonemore --case window:of-2-prefill"
    again = run_cli(*command.split()[1:], "--in-process", "--json")
    assert again.code == 1
    assert again.json["failures"][0]["command"] == command
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.get("name") == "window"
    assert int(suite.get("failures")) > 5


@pytest.mark.usefixtures("site")
def test_a_made_up_case_is_repeated_as_small_as_it_was_made():
    text = "mixed:rows=1x59+4x6,layout=hnd,hq=4,hkv=2,window=2:0,alibi=yes"
    result = run_cli("check", "WindowOneMore", "--case", text, "--in-process", "--json")
    (failure,) = result.json["failures"]
    assert failure["problem"] == "rows=1x4,d=1,block=1,window=2:0"
    assert failure["command"] == f"headstock check WindowOneMore --case mixed:{failure['problem']}"


@pytest.mark.usefixtures("site")
def test_a_crash_fails_its_case_and_the_rest_goes_on_but_for_a_convention_that_crashes_again_and_again(monkeypatch):
    monkeypatch.setattr(check_process, "DEATHS_OF_ONE", 1)
    result = run_cli("check", "crashes", "--case", "s*:*-extend", "--json")
    assert result.code == 1
    assert [(f["case"], f["reason"]) for f in result.json["failures"]] == [
        ("softcap:bends-extend", "the process was ended by signal 11 (SIGSEGV)")
    ]
    passed = {case["convention"] for case in result.json["cases"] if case["status"] == "passed"}
    assert {"scale", "sinks"} <= passed
    assert result.json["unrun"] == 1  # softcap:before-the-mask-extend
    assert "from the kernel" not in result.out


@pytest.mark.usefixtures("site")
def test_a_case_that_hangs_is_ended():
    result = run_cli("check", "hangs", "--case", "s[co]*:[ub][se]*-decode", "--timeout", "3", "--json", "--fail-fast")
    assert result.code == 1
    assert [case["case"] for case in result.json["cases"]] == ["scale:usual-decode", "softcap:bends-decode"]
    assert result.json["failures"][0]["reason"] == "the process took longer than 3 seconds"


@pytest.mark.usefixtures("site")
def test_an_exit_is_a_failure_like_any_other():
    result = run_cli("check", "EndsTheProgram", "--case", "causal:square-*", "--in-process", "--json")
    assert [f["case"] for f in result.json["failures"]] == ["causal:square-cache", "causal:square-ragged"]
    assert result.json["failures"][0]["reason"].startswith("forward raised SystemExit: 0 (")


@pytest.mark.usefixtures("site")
def test_a_backend_that_raises_before_any_case_fails():
    result = run_cli("check", "RefusesAll", "--in-process", "--json")
    assert result.code == 1
    (failure,) = result.json["failures"]
    assert failure["convention"] == "declared"
    assert failure["reason"].startswith("refusals() raised RuntimeError: not today")


@pytest.mark.usefixtures("site")
def test_options_reach_the_backend():
    arguments = ("check", "configured", "--case", "scale:one-*", "--in-process", "--json")
    right, wrong = (
        run_cli(*arguments, "--attention-backend-config", json.dumps({"configured": {"splits": n}})) for n in (1, 2)
    )
    assert (right.code, wrong.code) == (0, 1)
    assert "--attention-backend-config '{" in wrong.json["failures"][0]["command"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sdqa"], 'attention backend "sdqa" is not known'),
        (["away"], 'backend "Away" cannot be checked here: its library is not installed'),
        (["nothing"], 'backend "Nothing" cannot be checked here: does not run on cpu'),
        (["configured"], 'backend "Configured" cannot be checked here: needs options'),
        (["configured", "--attention-backend-config", '{"configured": {"splits": 0}}'], "must be at least 1"),
        (["sdpa", "--device", "mi300x"], "is a profile; a backend is checked on a device that is here"),
        (["sdpa", "--device", "cuda:9"], "is not on this machine"),
        (["sdpa", "--case", "windw:*"], "case: 'windw:*' is no case of sdpa"),
        (["sdpa", "--case", "mixed:rows=1"], "case: 'rows=1' cannot be read"),
        (["sdpa", "--aiter-op", "paged_attention"], "'paged_attention' is not OP=package.module:function"),
        (["sdpa", "--aiter-op", "paged=a:b"], "aiter_ops: 'paged' is no op; known are"),
        (["sdpa", "--aiter-op", "paged_attention=a:b"], "would never be called: sdpa calls no op"),
        (["sdpa", "--junit", "/no/such/folder/report.xml"], "junit: /no/such/folder/report.xml cannot be written"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_checked_is_refused(arguments, problem):
    result = run_cli("check", *arguments, "--in-process")
    assert (result.code, result.out) == (2, "")
    assert problem in " ".join(result.err.split())


@pytest.mark.usefixtures("site")
def test_refusals_and_deaths_of_the_other_process_are_told_here():
    result = run_cli("check", "dies-at-once")
    assert (result.code, result.out) == (2, "")
    result = run_cli("check", "DiesAtOnce")
    assert result.code == 2
    assert "the process ended with exit code 3 before the first case" in result.err


class TestPytest:
    KIT = "headstock.plugins.conformance"

    def run(self, folder, *arguments, site=None):
        code = f"import sys; sys.path[:0] = {[str(site)] if site else []!r}; import pytest; sys.exit(pytest.main())"
        command = [sys.executable, "-c", code, "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)

    def test_a_case_is_a_test(self, tmp_path, site):
        options = ("--pyargs", self.KIT, "--headstock-backend", "WindowOneMore", "-k", "window and of-2 or sinks:zero")
        done = self.run(tmp_path, *options, "-v", site=site)
        assert done.returncode == 1
        assert "window:of-2-decode FAILED" in done.stdout
        assert "sinks:zero-decode PASSED" in done.stdout
        assert CONVENTIONS["window"] in done.stdout
        assert "problem: rows=" in done.stdout
        assert "Traceback" not in done.stdout

    def test_without_a_backend_it_says_what_is_missing(self, tmp_path):
        done = self.run(tmp_path, "--pyargs", self.KIT)
        assert done.returncode == 2
        assert "name the backend to check: --headstock-backend NAME" in done.stdout

    def test_other_runs_are_not_disturbed_and_pay_nothing(self, tmp_path):
        (tmp_path / "test_other.py").write_text(
            "import sys\n"
            "def test_what_is_loaded():\n"
            "    ours = {name for name in sys.modules if name.startswith('headstock')}\n"
            "    assert ours == {'headstock', 'headstock.entrypoints', 'headstock.entrypoints.pytest_plugin'}\n"
            "    assert not {'torch', 'numpy', 'typer'} & set(sys.modules)\n"
        )
        done = self.run(tmp_path, "-q")
        assert done.returncode == 0, done.stdout
