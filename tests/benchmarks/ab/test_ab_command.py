"""`headstock ab` with real processes: verdicts, gates, reports, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest

from support.cli import run_cli

pytestmark = pytest.mark.timeout(600)  # a process an arm, on a machine that may be loaded
SMALL = ("--shapes", "decode:4/2/32:2x64", "--no-check", "--rounds", "12")


@pytest.mark.usefixtures("kernels")
class TestVerdicts:
    def test_a_slow_arm_is_slower_and_closes_the_gate(self):
        done = run_cli("ab", "sdpa", "slow", *SMALL, "--json", "--fail-if-slower", "0.9")
        document = done.json
        assert (done.code, document["verdict"], document["arm"], document["baseline"]) == (1, "slower", "slow", "sdpa")
        assert document["ratio"]["estimate"] < 0.5  # it takes five times as long
        assert document["ratio"]["low"] < document["ratio"]["estimate"] < document["ratio"]["high"] < 0.9
        assert document["arms"][1]["package"] == "kernels 0.3"
        assert len(document["lines"][0]["samples"]["slow"]) == document["ratio"]["pairs"]

    def test_a_wrong_arm_gets_no_verdict_on_speed(self):
        done = run_cli("ab", "sdpa", "wrong", *SMALL, "--json", "--fail-if-wrong")
        assert (done.code, done.json["verdict"], done.json["ratio"]) == (1, "wrong", None)
        (reason,) = done.json["comparisons"][0]["reasons"]
        assert reason.startswith("decode:4/2/32:2x64 float32: wrong: error 5.0e-01 against the float64 reference")
        assert done.json["lines"][0]["ratios"] == {}

    def test_one_that_raises_has_failed_and_cannot_pass_a_gate(self):
        done = run_cli("ab", "sdpa", "broken", *SMALL, "--json", "--fail-if-slower", "0.5")
        assert (done.code, done.json["verdict"]) == (1, "failed")
        assert "no kernel image is available" in done.json["comparisons"][0]["reasons"][0]

    def test_what_only_the_kit_sees_is_wrong_too(self):
        arguments = [word for word in SMALL if word != "--no-check"]
        done = run_cli("ab", "reference", "subtle", *arguments, "--json")
        assert (done.code, done.json["verdict"]) == (0, "wrong")
        assert "breaks window" in done.json["comparisons"][0]["reasons"][0]

    def test_nothing_is_held_against_a_wrong_baseline(self):
        done = run_cli("ab", "wrong", "sdpa", *SMALL, "--json", "--fail-if-wrong")
        assert (done.code, done.json["verdict"]) == (1, "not compared")
        assert "the baseline wrong is wrong" in done.json["comparisons"][0]["reasons"][0]

    def test_three_arms_have_a_table_and_the_undominated_ones(self):
        done = run_cli("ab", "sdpa", "slow", "wrong", *SMALL)
        assert done.code == 0
        assert "slow against sdpa: slower ×0." in done.out  # noqa: RUF001
        assert "wrong against sdpa: wrong" in done.out
        (pareto,) = [
            line for line in done.out.splitlines() if line.startswith("beaten by none in time, error together: ")
        ]
        assert "sdpa" in pareto
        assert "wrong" not in pareto.partition(":")[2]

    def test_another_environment_is_another_interpreter(self):
        done = run_cli("ab", "sdpa", f"slow@{sys.executable}", *SMALL, "--json")
        assert done.json["arms"][1]["python"] == sys.executable
        assert done.json["verdict"] == "slower"


@pytest.mark.usefixtures("kernels")
class TestCandidates:
    """What an automatic optimiser may hand in."""

    def one(self, arm, *options):
        done = run_cli("ab", "sdpa", arm, *SMALL, "--json", "--fail-if-wrong", *options)
        assert done.out, done.err
        (comparison,) = done.json["comparisons"]
        return done, comparison["verdict"], " ".join(comparison["reasons"])

    @pytest.mark.parametrize(
        ("arm", "verdict", "reason"),
        [
            ("crashing", "failed", "the worker of peer crashing has ended"),
            ("ending", "failed", "the worker of peer ending has ended"),
            ("drifting", "wrong", "wrong: error 5.0e-01 against the float64 reference, allowed is 1e-04, in a later"),
            ("remembering", "wrong", "in a later call"),
        ],
    )
    def test_one_that_fails_after_the_first_calls_is_found_out(self, arm, verdict, reason):
        done, found, reasons = self.one(arm)
        assert (done.code, found) == (1, verdict)
        assert reason in reasons
        assert done.json["lines"][0]["values"].keys() == {"sdpa"}, "the other one has its time"

    def test_one_that_hangs_has_failed_when_its_time_is_up(self):
        done, verdict, reasons = self.one("hanging", "--time-limit", "20")
        assert (done.code, verdict) == (1, "failed")
        assert "the worker of peer hanging has not answered for 20 s" in reasons

    def test_one_that_prints_spoils_no_document(self):
        done, verdict, reasons = self.one("talking")
        assert (done.code, reasons) == (0, "")
        assert verdict in ("no difference shown", "slower", "faster")

    def test_one_that_keeps_memory_is_told_of(self):
        done, _, _ = self.one("leaking")
        assert any(note.startswith("the process of leaking grew by ") for note in done.json["notes"])

    @pytest.mark.heavy
    def test_one_that_takes_seconds_a_call_is_slower_and_not_unknown(self):
        options = ("--shapes", "decode:4/2/32:2x64", "--no-check", "--rounds", "30", "--json")
        done = run_cli("ab", "sdpa", "glacial", *options, "--fail-if-slower", "0.9")
        assert (done.code, done.json["verdict"]) == (1, "slower")
        assert 6 <= done.json["ratio"]["pairs"] <= 12, "twice as many where they are disturbed"

    def test_one_that_serves_nothing_that_is_measured_passes_no_gate(self):
        done, verdict, reasons = self.one("narrow")
        assert (done.code, verdict) == (1, "not compared")
        assert "no shape that both sdpa and narrow serve" in reasons


def test_an_interrupt_leaves_what_was_measured_and_code_130(monkeypatch):
    from headstock.benchmarks.kernels.run import KernelBench

    whole = KernelBench.rows

    def one_and_an_interrupt(self):
        yield next(whole(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelBench, "rows", one_and_an_interrupt)
    shapes = ("--shapes", "decode:4/2/32:2x64,decode:4/2/32:1x64", "--no-check", "--rounds", "6")
    done = run_cli("ab", "sdpa", "sdpa{}", *shapes, "--json", "--fail-if-wrong")
    assert (done.code, done.json["interrupted"], len(done.json["lines"])) == (130, True, 1)
    assert done.json["notes"][0] == "interrupted: 1 of 2 lines were measured"


def test_markdown_and_the_store(tmp_path):
    db = {"HEADSTOCK_DB": str(tmp_path / "results.db")}
    done = run_cli("ab", "sdpa", "sdpa{}", *SMALL, "--markdown", "--save", environ=db)
    assert done.code == 0
    first, *rest = done.out.splitlines()
    assert first.startswith("**sdpa{}** against **sdpa**: ")
    assert "| workload | sdpa | sdpa{} |" in rest
    assert any(line.startswith("| decode:4/2/32:2x64 float32 1 thread | ") for line in rest)
    assert "`headstock ab sdpa" in done.out
    (run,) = run_cli("results", "list", "--json", environ=db).json["runs"]
    assert (run["kind"], [m["subject"] for m in run["measurements"]]) == ("ab", ["sdpa", "sdpa{}"])
    assert len(run["measurements"][0]["samples"]) >= 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sdpa",), "arms: name two or more"),
        (("sdpa", "sdqa"), "did you mean: sdpa"),
        (("sdpa", 'cpu{"speed": 9}'), "option 'speed': is not known"),
        (("sdpa", "cpu", "--dtype", "float7"), "dtype: 'float7' is not one of"),
        (("sdpa", "cpu", "--shapes", "decode"), "shapes: 'decode'"),
        (("sdpa", "cpu", "--rounds", "3"), "Invalid value for '--rounds'"),
        (("sdpa", "cpu", "--threads", "999"), "threads: must be at most"),
        (("sdpa", "cpu", "--fail-if-slower", "nan"), "fail_if_slower: must be a share"),
        (("sdpa", "cpu", "--fail-if-slower", "-1"), "fail_if_slower: must be a share"),
        (("sdpa", "cpu", "--fail-if-slower", "98"), "fail_if_slower: must be a share"),
        (("sdpa", "cpu", "--fail-if-slower", "98%"), "Invalid value for '--fail-if-slower'"),
        (("sdpa", "cpu", "--time-limit", "0"), "Invalid value for '--time-limit'"),
        (("sdpa", "cpu", "--time-limit", "nan"), "--time-limit"),
        (("sdpa", "cpu", "--html", "/no/such/folder/x.html"), "html: /no/such/folder/x.html cannot be written"),
        (("sdpa", "cpu", "--max-kl", "1"), "max_kl: is for whole engines; add --engine MODEL"),
        (("sdpa", "cpu", "--dataset", "x.json"), "dataset: is for whole engines; add --engine MODEL"),
        (("sdpa", "cpu", "--num-prompts", "2"), "num_prompts: is for whole engines"),
        (("sdpa", "cpu", "--engine", "m", "--max-kl", "nan"), "max_kl: must be a number of nats from 0, not nan"),
        (("sdpa", "cpu", "--engine", "m", "--max-kl", "-1"), "max_kl: must be a number of nats from 0, not -1"),
        (("sdpa", "cpu", "--engine", "m", "--shapes", "decode:*"), "shapes: says how kernels are measured alone"),
        (("sdpa", "cpu", "--engine", "m", "--phase", "decode"), "phase: says how kernels are measured alone"),
        (("sdpa", "cpu", "--json", "--markdown"), "markdown: stdout takes one of --json and --markdown"),
        (("sdpa", "cpu", "--block-size", "99999999999"), "Invalid value for '--block-size'"),
        (("sdpa", "flashinfer"), "arm 'flashinfer' cannot take part"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, problem):
    done = run_cli("ab", *arguments)
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err


def test_the_help_shows_how_an_arm_is_written_whole():
    words = "".join(run_cli("ab", "--help").out.replace("│", "").split())
    assert "NAME[{options}][+op=pkg:fn][@ENV],thebaselinefirst." in words  # an unescaped [@ is markup


def test_an_environment_without_headstock_is_told(tmp_path):
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    done = run_cli("ab", "sdpa", f"sdpa@{tmp_path / 'bare'}", *SMALL)
    assert done.code == 2
    assert "have this version of headstock?" in done.err
    assert "No module named 'headstock'" in done.err


@pytest.mark.heavy
@pytest.mark.usefixtures("kernels")
class TestLive:
    """Twenty live runs of each kind, on whatever the machine does meanwhile."""

    def verdicts(self, *arms):
        options = ("--shapes", "decode:9/3/64:4x1k", "--no-check", "--json")
        return [json.loads(run_cli("ab", *arms, *options).out)["verdict"] for _ in range(20)]

    def test_a_slow_one_is_found_slow_every_time(self):
        assert self.verdicts("sdpa", "slow") == ["slower"] * 20

    def test_a_wrong_one_is_found_wrong_every_time(self):
        assert self.verdicts("sdpa", "wrong") == ["wrong"] * 20

    def test_two_alike_show_no_difference(self):
        assert self.verdicts("cpu", "cpu{}").count("no difference shown") >= 16
