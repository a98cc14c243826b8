"""Whole engines against each other: distributions by closed form, and arms over a small random model."""

from __future__ import annotations

import html
import json
import math

import pytest

from headstock.benchmarks.ab.html import to_html
from headstock.benchmarks.ab.numerics import answer_divergences, divergence, divergences, first_difference
from headstock.benchmarks.ab.options import ReportOptions
from headstock.benchmarks.ab.report import read_report
from headstock.benchmarks.ab.showing import show, to_markdown
from support.cli import run_cli
from support.environments import environment_over_this
from support.plugins import write_distribution
from support.tiny import tiny_folder

pytestmark = pytest.mark.timeout(600)  # a process an arm, on a machine that may be loaded


def distribution(**shares: float) -> dict[int, float]:
    """Token ids by letter."""
    return {ord(letter): math.log(share) for letter, share in shares.items()}


def test_equal_distributions_are_not_apart():
    assert divergence(distribution(a=0.5, b=0.3), distribution(a=0.5, b=0.3)) == pytest.approx(0, abs=1e-12)


def test_divergence_is_that_of_the_named_tokens_and_one_class_of_all_others():
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(distribution(a=0.5), distribution(a=0.25)) == pytest.approx(expected)
    # b is named by one side only, so it is among the others on both.
    assert divergence(distribution(a=0.5, b=0.5), distribution(a=0.25, c=0.1)) == pytest.approx(expected)


def test_distributions_without_a_common_token_say_nothing():
    assert divergence(distribution(a=0.5), distribution(b=0.5)) == 0.0
    assert divergences([[distribution(a=0.5)]] * 2, [[distribution(a=0.5)]] * 2) == [0.0, 0.0]


def test_the_first_difference_is_the_earliest_of_all_answers():
    assert first_difference([(1, 2, 3), (4, 5, 6)], [(1, 2, 9), (4, 9, 6)]) == 1
    assert first_difference([(1, 2)], [(1, 2)]) is None


def test_answers_are_compared_to_the_first_token_that_differs():
    one, other = distribution(a=0.5), distribution(a=0.25)
    apart = divergence(one, other)
    mine, theirs = [(1, one), (2, one), (3, one)], [(1, one), (7, other), (3, other)]
    assert answer_divergences([mine], [theirs]) == [0.0, apart]
    assert answer_divergences([mine, mine], [mine, mine[:1]]) == [0.0] * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


def engines(model, *arms, options=("--rounds", "6")):
    workload = ("--num-prompts", "3", "--input-len", "40", "--output-len", "6")
    return run_cli("ab", *arms, "--engine", model, *workload, "--no-check", "--json", *options)


def test_right_arms_are_compared_in_throughput_and_latencies(model, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    document = engines(model, "sdpa", "reference", "sdpa{}").json
    assert (document["level"], document["baseline"]) == ("engine", "sdpa")
    assert [line["metric"] for line in document["lines"]] == [
        "output_throughput", "ttft_median", "tpot_median", "itl_p99", "attention_time",
        "peak_memory",
    ]  # fmt: skip
    for arm in ("reference", "sdpa{}"):
        assert document["numerics"][arm]["token agreement"] == 1.0
        assert document["numerics"][arm]["mean KL"] < 1e-9
        assert document["numerics"][arm]["mean KL, decoding"] < 1e-9
        assert "first divergence, token" not in document["numerics"][arm]
    for line in document["lines"][-2:]:
        assert set(line["values"]) == {"sdpa", "reference", "sdpa{}"}
        assert min(line["values"].values()) > 0
    assert document["lines"][-1]["unit"] == "MiB"
    line = document["lines"][0]
    assert line["values"]["sdpa"] > 0
    assert len(line["samples"]["reference"]) == document["comparisons"][0]["ratio"]["pairs"]
    assert_every_form_has_everything(document, capsys)


def assert_every_form_has_everything(document, capsys) -> None:
    """What the document says of speed, memory and numerics: at the terminal, for a pull request, and in a browser."""
    report = read_report(document)
    assert json.loads(json.dumps(report.to_dict())) == document
    show(report, ReportOptions())
    forms = (capsys.readouterr().out, to_markdown(report), html.unescape(to_html(report)))
    words = [line["metric"] for line in document["lines"]]
    words += [name for values in document["numerics"].values() for name in values]
    assert {"token agreement", "mean KL", "peak_memory", "ttft_median"} <= set(words)
    for form in forms:
        assert not [word for word in words if word not in form]


@pytest.mark.usefixtures("kernels")
def test_an_arm_with_other_distributions_is_wrong(model):
    done = engines(model, "sdpa", "wrong", options=("--rounds", "6", "--fail-if-wrong"))
    assert (done.code, done.json["verdict"], done.json["ratio"]) == (1, "wrong", None)
    assert "nats from the baseline's in the mean, allowed are 0.0001" in done.json["comparisons"][0]["reasons"][0]
    assert engines(model, "sdpa", "wrong", options=("--rounds", "6", "--max-kl", "100")).json["ratio"] is not None


FIRST_RIGHT = """
from headstock.backends.sdpa import SdpaBackend

class FirstRight(SdpaBackend):
    def plan(self, batch):
        self.decodes = batch.max_query_len == 1
        return super().plan(batch)

    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        if self.decodes:
            out.mul_(1.5)
"""
"""Prompts, and so what is given, come out right."""


def test_an_arm_that_only_decodes_wrong_is_wrong(model, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    backends, modules = {"first": "first_right:FirstRight"}, {"first_right": FIRST_RIGHT}
    write_distribution(site, "first", backends=backends, modules=modules)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    document = engines(model, "sdpa", "first").json
    numerics = document["numerics"]["first"]
    assert numerics["mean KL"] < 1e-9 < numerics["mean KL, decoding"]
    assert (document["verdict"], document["ratio"]) == ("wrong", None)
    assert "in the mean while decoding, allowed are 0.0001" in document["comparisons"][0]["reasons"][0]


LASTING = """
import time
from headstock.backends.sdpa import SdpaBackend

class Lasting(SdpaBackend):
    def forward(self, layer, query, **rest):
        start = time.perf_counter()
        super().forward(layer, query, **rest)
        end = start + {factor} * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass
"""
"""A backend that takes so many times as long."""


@pytest.mark.usefixtures("kernels")
def test_arms_that_raise_or_die_have_failed_and_the_others_are_compared(model):
    document = engines(model, "sdpa", "broken", "sdpa{}", "dying").json
    verdicts = {c["arm"]: c["verdict"] for c in document["comparisons"]}
    assert (verdicts["broken"], verdicts["dying"]) == ("failed", "failed")
    assert verdicts["sdpa{}"] in ("faster", "slower", "no difference shown")
    assert "no kernel image is available" in document["arms"][1]["problems"][0]
    assert "has ended; the last it said:\n  segmentation fault" in document["arms"][3]["problems"][0]


def test_two_versions_of_a_package_are_two_environments(model, tmp_path):
    """Neither is installed here."""
    pythons: list[str] = []
    for version, factor in (("1.0", 1), ("2.0", 5)):
        python, site = environment_over_this(tmp_path / version)
        modules = {"mine_kernels": LASTING.format(factor=factor)}
        write_distribution(site, "kernels", version, backends={"mine": "mine_kernels:Lasting"}, modules=modules)
        pythons.append(str(python.parent.parent))
    document = engines(model, *(f"mine@{python}" for python in pythons)).json
    assert [arm["package"] for arm in document["arms"]] == ["kernels 1.0", "kernels 2.0"]
    assert [arm["python"] for arm in document["arms"]] == [f"{python}/bin/python" for python in pythons]
    assert document["arms"][0]["source_hash"] != document["arms"][1]["source_hash"]
    assert document["numerics"][f"mine@{pythons[1]}"]["token agreement"] == 1.0
    (attention,) = [line for line in document["lines"] if line["metric"] == "attention_time"]
    first, second = attention["values"].values()
    assert second > 2 * first  # each call takes five times as long


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sdpa", "sdqa"), "did you mean: sdpa"),
        (("sdpa", 'sdpa{"speed": 9}'), "arm 'sdpa{\"speed\": 9}' cannot take part: attention_backend_config['sdpa']"),
        (("sdpa", "cpu", "--input-len", "100000"), "input_len: a request of 100006 tokens"),
        (("sdpa", "cpu", "--dataset", "/no/such/file"), "/no/such/file"),
    ],
)
def test_what_cannot_be_compared_is_refused(model, arguments, problem):
    done = run_cli("ab", *arguments[:2], "--engine", model, "--output-len", "6", *arguments[2:])
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err


def test_kernels_have_the_heads_of_a_model(model):
    done = run_cli(
        "ab", "sdpa", "sdpa{}", "--model", model, "--phase", "decode", "--no-check", "--rounds", "6", "--json"
    )
    assert [line["name"] for line in done.json["lines"]] == [
        f"decode:4/2/8:{batch}x1k{features} float32 1 thread" for features in ("", "+window=5") for batch in (1, 16)
    ]
    refused = run_cli("ab", "sdpa", "cpu", "--model", model, "--shapes", "decode:4/2/8:1x1k")
    assert (refused.code, "chooses the shapes" in refused.err) == (2, True)
