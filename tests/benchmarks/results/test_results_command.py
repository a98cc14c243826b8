"""`headstock results`: in from our commands and others', out as tables, and what is refused."""

from __future__ import annotations

import csv
import io
import json

import pytest

from headstock.benchmarks.results.records import Measurement, Run
from headstock.benchmarks.results.store import Store
from support.cli import run_cli

SERVE = {"backend": "vllm", "model_id": "m", "num_prompts": 2, "median_ttft_ms": 10.0, "request_throughput": 5.0}
SGLANG = {"backend": "sglang", "dataset_name": "random", "mean_e2e_latency_ms": 3.0, "median_ttft_ms": 20.0}


@pytest.fixture
def results(tmp_path):
    db = str(tmp_path / "results.db")

    def call(*arguments, stdin=""):
        return run_cli("results", *arguments, "--db", db, stdin=stdin.encode())

    return call


def write(tmp_path, name, *documents):
    path = tmp_path / name
    path.write_text("\n".join(map(json.dumps, documents)))
    return str(path)


def check_document(backend="sdpa"):
    return run_cli("check", backend, "--json", "--in-process", "--case", "window:*").out


def test_a_check_goes_in_through_a_pipe(results):
    assert "1 new runs, 0 known ones" in results("import", "-", stdin=check_document()).err
    (run,) = results("list", "--json").json["runs"]
    assert (run["kind"], [m["metric"] for m in run["measurements"]]) == ("check", ["failed", "passed"])
    assert run["measurements"][0]["right"] is True
    assert len(run["measurements"][0]["source_hash"]) == 12
    assert run["when"] > "2026"
    assert run["measurements"][1]["value"] >= 5


def test_engines_stand_in_one_table(results, tmp_path):
    results("import", write(tmp_path, "vllm.json", SERVE), write(tmp_path, "sglang.jsonl", SGLANG, SGLANG))
    ids = [run["id"] for run in results("list", "--json").json["runs"]]
    document = results("compare", *ids, "--metric", "ttft_*", "--json").json
    assert document["workloads_differ"]
    (line,) = document["lines"]
    assert sorted(line["values"]) == [10.0, 20.0]
    shown = results("compare", *ids)
    assert "matched by metric" in shown.err
    assert "ttft_median, ms" in " ".join(shown.out.split())


def test_an_export_can_be_imported_elsewhere_and_is_the_same(results, tmp_path):
    results("import", write(tmp_path, "vllm.json", SERVE))
    exported = results("export", "--format", "json").out
    elsewhere = run_cli("results", "import", "-", "--db", str(tmp_path / "other.db"), stdin=exported.encode())
    assert "1 new runs" in elsewhere.err
    assert run_cli("results", "export", "--format", "json", "--db", str(tmp_path / "other.db")).out == exported
    assert "0 new runs, 1 known ones" in results("import", "-", stdin=exported).err


def test_csv_has_a_row_a_number(results, tmp_path):
    results("import", write(tmp_path, "vllm.json", SERVE))
    rows = list(csv.DictReader(io.StringIO(results("export").out)))
    assert {(r["subject"], r["metric"], r["value"]) for r in rows} == {
        ("vllm", "ttft_median", "10.0"),
        ("vllm", "request_throughput", "5.0"),
    }
    target = tmp_path / "out.csv"
    assert results("export", str(target), "--run", "last").code == 0
    assert target.read_text().splitlines()[0].startswith("run,kind,source,when")


def test_a_table_without_rows_has_its_columns(results, tmp_path):
    Store(tmp_path / "results.db").close()
    (line,) = results("export").out.splitlines()
    assert line.split(",")[:2] == ["run", "kind"]


def test_parquet_holds_the_same_rows_or_says_what_is_missing(results, tmp_path):
    results("import", write(tmp_path, "vllm.json", SERVE))
    target = tmp_path / "out.parquet"
    done = results("export", str(target), "--format", "parquet")
    try:
        from pyarrow import parquet
    except ImportError:
        assert (done.code, "pip install 'headstock[parquet]'" in done.err) == (2, True)
    else:
        assert [row["metric"] for row in parquet.read_table(target).to_pylist()] == [
            "ttft_median",
            "request_throughput",
        ]


def points(*values):
    """An export with one run a value, a day apart."""
    runs = [
        Run.of(
            kind="kernels",
            source="headstock",
            when=f"2026-01-{day:02}T00:00:00+00:00",
            machine={"cpu": "x"},
            measurements=(
                Measurement(
                    subject="fast",
                    workload="w",
                    metric="time",
                    unit="us",
                    value=value,
                    better="lower",
                    samples=tuple(value * (1 + d / 1000) for d in range(-3, 4)),
                ),
            ),
        )
        for day, value in enumerate(values, 1)
    ]
    return json.dumps({"schema": "headstock.results/1", "runs": [run.to_dict() for run in runs]})


@pytest.mark.parametrize(("values", "code"), [((10, 10.01, 12), 1), ((10, 12, 12.01), 0), ((10, 9), 0)])
def test_a_regression_can_fail_a_build(results, values, code):
    results("import", "-", stdin=points(*values))
    shown = results("history", "fast", "--fail-if-worse")
    assert shown.code == code
    assert shown.out
    points_ = results("history", "fast", "--json").json["series"][0]["points"]
    assert [p["value"] for p in points_] == list(values)
    assert (points_[-1]["verdict"] == "worse") == bool(code)


def exported(*, value: str, better: str = '"lower"', when: str = '"2026-01-01T00:00:00+00:00"') -> str:
    """An export with these words in it."""
    measurement = f'"subject": "a", "workload": "w", "metric": "m", "unit": "u", "value": {value}, "better": {better}'
    run = f'"id": "x", "kind": "k", "source": "s", "when": {when}, "measurements": [{{{measurement}}}]'
    return f'{{"schema": "headstock.results/1", "runs": [{{{run}}}]}}'


def test_times_of_other_zones_are_sorted_with_the_others(results):
    results("import", "-", stdin=exported(value="1", when='"2026-01-01T00:30:00+02:00"'))
    (run,) = results("list", "--json").json["runs"]
    assert run["when"] == "2025-12-31T22:30:00+00:00"


def test_what_has_no_date_is_not_kept_twice_either(results, tmp_path):
    document = check_document()
    results("import", "-", stdin=document)
    assert "0 new runs, 1 known ones" in results("import", "-", stdin=document).err
    older = json.dumps({k: v for k, v in json.loads(document).items() if k not in ("when", "source_hash")})
    assert "1 new runs, 0 known ones" in results("import", "-", stdin=older).err
    assert "0 new runs, 1 known ones" in results("import", "-", stdin=older).err
    file = write(tmp_path, "sglang.jsonl", SGLANG)
    results("import", file)
    assert "0 new runs, 1 known ones" in results("import", file).err


def test_a_pattern_that_fits_nothing_is_refused(results, tmp_path):
    results("import", write(tmp_path, "vllm.json", SERVE))
    done = results("compare", "last", "--metric", "energy")
    assert (done.code, done.out) == (2, "")
    assert "these runs have nothing like 'energy'" in done.err


def test_reading_makes_no_file(tmp_path):
    done = run_cli("results", "list", "--db", str(tmp_path / "folder" / "x.db"))
    assert (done.code, done.out) == (2, "")
    assert "there is no file" in done.err
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("arguments", "stdin", "problem"),
    [
        (("show",), "", "there are no runs in"),
        (("show", "zz"), "", "'zz' is not in"),
        (("compare", "zz"), "", "'zz' is not in"),
        (("history", "nobody"), "", "there is nothing about 'nobody'"),
        (("import", "/no/such/file"), "", "/no/such/file cannot be read"),
        (("import", "-"), "{", "- is neither JSON nor JSON lines"),
        (("import", "-"), "[" * 100_000, "- is neither JSON nor JSON lines"),
        (("import", "-"), "{}", "- holds no result of headstock, vLLM or SGLang"),
        (("import", "-"), '{"schema": "headstock.results/1"}', "says it is headstock.results/1, but KeyError"),
        (("import", "-"), '{"schema": "headstock.bench.kernels/1", "rows": 5}', "says it is headstock.bench.kernels/1"),
        (("import", "-"), '{"schema": "headstock.ab/9"}', "- says it is headstock.ab/9; this version reads headstock."),
        (("import", "-"), exported(value='"fast"'), "- says it is headstock.results/1, but ValidationError"),
        (("import", "-"), exported(value="NaN"), "a number is not finite"),
        (("import", "-"), exported(value="1", better='"sideways"'), "at `$.measurements[0].better`"),
        (("import", "-"), exported(value="1", when='"yesterday"'), "Invalid isoformat string: 'yesterday'"),
        (("export", "--format", "parquet"), "", "parquet is no text"),
        (("export", "/no/such/folder/x.csv"), "", "cannot be written"),
        (("export", "/"), "", "/ cannot be written: Is a directory"),
    ],
)
def test_what_cannot_be_is_refused(results, tmp_path, arguments, stdin, problem):
    Store(tmp_path / "results.db").close()
    done = results(*arguments, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert problem in done.err
    assert "Traceback" not in done.err
