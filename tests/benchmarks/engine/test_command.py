"""`headstock bench throughput` and `latency` over a tiny model: tables, documents, exit codes, refusals."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest
import torch

from headstock.benchmarks.engine.metrics import METRICS
from headstock.benchmarks.engine.report import ArmResult, Report, Series
from headstock.benchmarks.results.documents import read_document
from support.cli import run_cli
from support.plugins import forget_modules, write_distribution
from support.tiny import tiny_folder

SIZES = ("--num-prompts", "5", "--input-len", "12", "--output-len", "4", "--rounds", "2")
BROKEN = """
from headstock.backends.sdpa import SdpaBackend

class Broken(SdpaBackend):
    calls = 0

    def forward(self, *arguments, **keywords):
        Broken.calls += 1
        if Broken.calls > 30:
            raise RuntimeError("kernel launch failed")
        super().forward(*arguments, **keywords)
"""
"""Works for the warm-up, and fails later."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


@pytest.fixture(scope="module")
def document(tiny):
    """Of two backends in turns."""
    result = run_cli("bench", "throughput", tiny, *SIZES, "--backends", "sdpa,reference", "--json", "-")
    assert result.code == 0, result.err
    return result.json


def test_the_table_has_a_line_a_metric_and_a_column_an_engine(tiny):
    result = run_cli("bench", "throughput", tiny, *SIZES, "--backends", "sdpa,Reference", environ={"COLUMNS": "120"})
    assert result.code == 0
    assert re.search(r"^ +sdpa +Reference *$", result.out, re.M)
    for line in ("output tokens/s", "requests/s", "TTFT ms, median / p99", "TPOT ms", "ITL ms", "E2EL ms"):
        assert re.search(rf"^{re.escape(line)}.*±\d+%.*±\d+%", result.out, re.M), line
    assert re.search(
        r"^times as fast as sdpa +0\.\d+ \(0\.\d+ to 0\.\d+\)\?", result.out, re.M
    )  # far slower, two rounds
    assert re.search(r"^same tokens as sdpa +100\.0%", result.out, re.M)
    assert "workload: random 5 x 12+4, seed 0; 60 prompt and 20 new tokens a turn" in result.out
    assert "Reference: attention backend: reference" in result.out


def test_the_document_is_the_report(document):
    assert document["schema"] == "headstock.bench.throughput/1"
    assert set(document) == {"schema", *(field.name for field in fields(Report))}
    assert (document["num_requests"], document["num_prompt_tokens"], document["num_output_tokens"]) == (5, 60, 20)
    assert (document["rounds"], document["dtype"], document["threads"]) == (2, "float32", torch.get_num_threads())
    sdpa, reference = document["arms"]
    assert set(sdpa) == {field.name for field in fields(ArmResult)}
    assert (sdpa["name"], reference["name"], sdpa["failure"]) == ("sdpa", "reference", "")
    assert (sdpa["block_size"], sdpa["layout"], len(sdpa["warm_seconds"])) == (16, "nhd", 1)
    assert (sdpa["ratio"], sdpa["agreement"], reference["agreement"]) == (None, None, 1.0)
    assert reference["ratio"]["median"] < 1  # float64, row by row
    assert set(sdpa["metrics"]) == set(METRICS)
    for name, series in sdpa["metrics"].items():
        assert set(series) == {field.name for field in fields(Series)}
        assert (series["unit"], len(series["samples"])) == (METRICS[name].unit, 2)
        assert min(series["samples"]) <= series["median"] <= max(series["samples"])


def test_rates_and_latencies_are_of_the_same_turns(document):
    for arm in document["arms"]:
        metrics = arm["metrics"]
        for rate, longest in zip(metrics["output_throughput"]["samples"], metrics["e2el_p99"]["samples"], strict=True):
            assert 20 / rate >= longest / 1e3 * 0.999  # the last token comes no earlier than 99 % of the requests' ends


def test_the_results_store_reads_it(document):
    (run,) = read_document(document)
    assert (run.kind, run.source, run.subjects) == ("throughput", "headstock", ("sdpa", "reference"))
    assert len(run.measurements) == 2 * len(METRICS)
    first = run.measurements[0]
    assert (first.metric, first.unit, first.better) == ("output_throughput", "tokens/s", "higher")
    assert "random 5 x 12+4, seed 0" in first.workload


def test_latency_is_of_one_batch_and_written_to_a_file(tiny, tmp_path):
    file = tmp_path / "latency.json"
    result = run_cli(
        "bench", "latency", tiny, "--batch-size", "2", "--input-len", "9", "--output-len", "3", "--rounds", "1",
        "--warmup", "0", "--json", str(file), "--markdown",
    )  # fmt: skip
    assert result.code == 0
    assert f"written to {file}" in result.err
    assert "| output tokens/s |" in result.out
    written = json.loads(file.read_text())
    assert (written["schema"], written["num_requests"], written["rounds"]) == ("headstock.bench.latency/1", 2, 1)
    assert written["arms"][0]["warm_seconds"] == []
    assert written["arms"][0]["name"] == "auto"


def test_a_result_can_be_kept(tiny, tmp_path):
    sizes = ("--input-len", "5", "--output-len", "2", "--rounds", "1", "--warmup", "0")
    environ = {"HEADSTOCK_DB": str(tmp_path / "results.db")}
    result = run_cli("bench", "latency", tiny, *sizes, "--save", environ=environ)
    assert result.code == 0, result.err
    assert "kept as run" in result.err
    listed = run_cli("results", "list", "--json", environ=environ).json
    assert [(run["kind"], run["measurements"][0]["subject"]) for run in listed["runs"]] == [("latency", "auto")]


def test_prompts_may_come_from_a_file(tiny, tmp_path):
    turns = [{"from": "human", "value": "tell me of the fox"}, {"from": "gpt", "value": "it is a red animal"}]
    (tmp_path / "share.json").write_text(json.dumps([{"conversations": turns}] * 3))
    result = run_cli(
        "bench", "throughput", tiny, "--dataset", str(tmp_path / "share.json"), "--num-prompts", "2", "--rounds", "1",
        "--json", "-",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert result.json["workload"] == "share.json 2, seed 0"
    assert result.json["num_requests"] == 2


def test_an_engine_that_fails_has_no_numbers_and_the_others_have(tiny, site):
    write_distribution(site, "breaking", backends={"broken": "breaking:Broken"}, modules={"breaking": BROKEN})
    result = run_cli("bench", "throughput", tiny, *SIZES, "--backends", "broken,sdpa", "--json", "-")
    assert result.code == 1
    broken, sdpa = result.json["arms"]
    assert (broken["failure"], broken["metrics"]) == ("RuntimeError: kernel launch failed", None)
    assert sdpa["metrics"]["output_throughput"]["median"] > 0
    assert sdpa["ratio"] is None
    forget_modules(site)
    result = run_cli("bench", "throughput", tiny, *SIZES, "--backends", "broken,sdpa")
    assert result.code == 1
    assert "NO NUMBERS: broken: RuntimeError: kernel launch failed" in result.out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--backends", "nope"), 'attention backend "nope" is not known'),
        (("--backends", "sdpa,,reference"), "backends: 'sdpa,,reference' has an empty name"),
        (("--backends", "sdpa,SDPA"), "names one twice"),
        (("--input-len", "300"), "input_len: a request of 332 tokens is more than the model's 256"),
        (("--max-model-len", "100"), "input_len: a request of 160 tokens is more than the model's 100"),
        (("--range-ratio", "1"), "range_ratio: must be at least 0 and below 1"),
        (("--dataset", "/nowhere.json"), "dataset: /nowhere.json cannot be read"),
        (("--json", "/nowhere/x.json"), "json: /nowhere/x.json cannot be written"),
        (("--rounds", "0"), "greater than or equal to 1"),
        (("--dtype", "int3"), "dtype: 'int3' is not one of"),
        (("--kv-cache-memory", "nought"), "kv_cache_memory: 'nought' is not a size"),
        (("--attention-backend-config", '{"sdpa": 3}'), "must map options to values"),
    ],
)
def test_wrong_options_are_refused(tiny, options, problem):
    result = run_cli("bench", "throughput", tiny, *options, environ={"COLUMNS": "200"})
    assert (result.code, result.out) == (2, "")
    assert problem in " ".join(result.err.split())
