"""`headstock bench kernels` on a tiny grid: tables, the JSON document, exit codes and refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields

import pytest

from headstock.benchmarks.kernels import limits
from headstock.benchmarks.kernels.report import SCHEMA, Measurement, Row
from support.cli import run_cli
from support.plugins import write_distribution

TINY = (
    "bench",
    "kernels",
    "--shapes",
    "decode:2/1/16:2x64,prefill:2/1/16:32,chunk:2/1/16:8+32",
    "--dtype",
    "float32",
    "--threads",
    "1",
    "--rounds",
    "2",
)
NUMBER = (int, float)
ROW = {
    "shape": str,
    "sizes": dict,
    "dtype": str,
    "threads": int,
    "kv_bytes": int,
    "flops": int,
    "unit": str,
    "limit": str,
    "limit_rate": NUMBER,
    "measurements": list,
    "rounds": int,
    "disturbed": int,
    "kept_disturbed": bool,
    "other_load": (*NUMBER, type(None)),
    "skipped": str,
}
MEASUREMENT = {
    "name": str,
    "reason": str,
    "failed": bool,
    "block_size": int,
    "layout": str,
    "error": NUMBER,
    "plan_us": NUMBER,
    "median_us": NUMBER,
    "spread": NUMBER,
    "samples_us": list,
    "calls": int,
    "grown_bytes": int,
    "rate": NUMBER,
    "share": dict,
    "versus": list,
}
INTERVAL = {"median": NUMBER, "low": NUMBER, "high": NUMBER, "coverage": NUMBER}
WRONG = """
from headstock.core.attention import AttentionBackend, Capabilities, ANY

class Wrong(AttentionBackend):
    @classmethod
    def capabilities(cls, device):
        return Capabilities(
            dtypes=frozenset({"float32"}), kv_formats=frozenset({"fp32"}), head_sizes=ANY, group_sizes=ANY,
            block_sizes=ANY, kinds=frozenset({"decoder"}), kv_sources=frozenset({"cache"}),
            causal=frozenset({True}), layouts=("nhd",),
        )

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        out.copy_(query)
"""


def has_shape(document, shape):
    assert set(document) == set(shape)
    for key, kind in shape.items():
        assert isinstance(document[key], kind), (key, document[key])


def strict(text):
    """JSON without NaN and infinities."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.fixture(scope="module", autouse=True)
def _small_limits():
    """Limits of small buffers: what is tested here is not their value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MOST_READ", 2**20)
        patch.setattr(limits, "LIMIT_CALLS", 1)
        patch.setattr(limits, "GEMM", 256)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run over two backends: what stdout shows, and the document."""
    file = tmp_path_factory.mktemp("bench") / "result.json"
    result = run_cli(*TINY, "--backends", "reference,sdpa", "--json", str(file))
    assert result.code == 0, result.err
    return result, strict(file.read_text())


def test_the_tables_go_to_stdout_and_fit_into_80_columns(run):
    result, _ = run
    assert max(map(len, result.out.splitlines())) <= 80
    for part in ("decode:2/1/16:2x64 float32, 1 thread", "prefill:2/1/16:32", "chunk:2/1/16:8+32", "reference in all"):
        assert part in result.out
    assert "written to" in result.err


def test_the_document_has_its_shape(run):
    _, document = run
    assert document["schema"] == SCHEMA
    top = {"schema", "command", "machine", "load_average", "seconds", "interrupted", "contenders", "limits"}
    assert set(document) == top | {"overheads", "rows", "summary"}
    assert {f.name for f in fields(Row)} <= set(ROW)
    assert {f.name for f in fields(Measurement)} == set(MEASUREMENT)
    assert [entry["name"] for entry in document["contenders"]] == ["reference", "sdpa"]
    for when in ("before", "after"):
        for limit in document["limits"][when]:
            has_shape(limit, {"name": str, "threads": int, "unit": str, "rate": NUMBER})
    for row in document["rows"]:
        has_shape(row, ROW)
        for m in row["measurements"]:
            has_shape(m, MEASUREMENT)
            has_shape(m["share"], INTERVAL)
            assert len(m["samples_us"]) == 2
            for versus in m["versus"]:
                has_shape(versus, {"name": str, "ratio": dict})
                has_shape(versus["ratio"], INTERVAL)


def test_the_document_holds_every_row_and_its_sizes(run):
    _, document = run
    labels = ["decode:2/1/16:2x64", "prefill:2/1/16:32", "chunk:2/1/16:8+32"]
    assert [row["shape"] for row in document["rows"]] == labels
    assert [row["shape"] for row in document["overheads"]] == ["decode:2/1/16:1x1"]
    assert document["overheads"][0]["layers"] == 30
    assert document["rows"][2]["sizes"]["length"] == 40
    assert {s["what"] for s in document["summary"]} == {"decode within the cache", "prefill", "chunk"}
    assert document["machine"]["cpus"] >= 1


def test_with_a_dash_the_document_is_all_of_stdout():
    result = run_cli(*TINY, "--phase", "decode", "--backends", "sdpa", "--json", "-")
    assert strict(result.out)["command"].startswith("headstock bench kernels --shapes")


def test_a_wrong_backend_of_a_package_gets_no_time_and_the_exit_code_says_so(site):
    write_distribution(site, "kernels-inc", backends={"swift": "swift:Wrong"}, modules={"swift": WRONG})
    result = run_cli(*TINY, "--phase", "decode", "--backends", "swift,sdpa", "--markdown")
    assert result.code == 1
    (line,) = [line for line in result.out.splitlines() if line.startswith("| decode:2/1/16:2x64")]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[5].startswith("wrong: error ")
    assert " µs, " in cells[6]
    assert "- No time: swift, decode:2/1/16:2x64 float32 1 thread: wrong: error" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backends", "spda"), 'attention backend "spda" is not known'),
        (("--dtype", "float31"), "dtype: 'float31' is not one of float64, float32, bfloat16, float16"),
        (("--threads", "0"), "threads: '0' is not a number from 1 to"),
        (("--threads", "9999"), "threads: '9999' is not a number from 1 to"),
        (("--threads", "two"), "threads: 'two' is not a number from 1 to"),
        (("--shapes", "decode"), "shapes: 'decode' is neither a pattern nor a shape"),
        (("--phase", "encode"), "phase: 'encode' is not one of decode, prefill, chunk, all"),
        (("--peer", "vllm"), "peer: 'vllm' is not NAME=PYTHON"),
        (("--json", "/no/such/folder/x.json"), "json: /no/such/folder/x.json cannot be written"),
        (("--json", "-", "--markdown"), "markdown: stdout takes one of --json and --markdown; give --json a file"),
        (("--block-size", "99999999999"), "Invalid value for '--block-size'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_wrong_input_is_refused_before_anything_is_measured(arguments, message):
    result = run_cli("bench", "kernels", "--quick", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_backend_that_cannot_run_here_is_refused_with_its_reasons(site):
    source = (
        WRONG + "    requires = (__import__('headstock.core.attention').core.attention.Requirement(package='nope'),)\n"
    )
    write_distribution(site, "kernels-inc", backends={"swift": "swift:Wrong"}, modules={"swift": source})
    result = run_cli("bench", "kernels", "--quick", "--backends", "swift")
    assert result.code == 2
    assert 'backend "swift" cannot be measured here:\n  package nope is not installed' in result.err


def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    from headstock.benchmarks.kernels.run import KernelBench

    whole = KernelBench.rows

    def two_and_an_interrupt(self):
        rows = whole(self)
        yield next(rows)
        yield next(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelBench, "rows", two_and_an_interrupt)
    result = run_cli(*TINY, "--backends", "sdpa", "--json", "-")
    assert result.code == 130
    document = strict(result.out)
    assert document["interrupted"]
    assert len(document["rows"]) == 1


@pytest.mark.parametrize("words", [("bench",), ("bench", "kernels")], ids=" ".join)
def test_its_help_fits_into_80_columns_and_imports_no_torch(words):
    result = run_cli(*words, "--help")
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    assert "…" not in result.out
    code = "import atexit, sys; from headstock.entrypoints.cli import main\n"
    code += "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--help"], check=True, capture_output=True, text=True, env=os.environ
    )
    assert not {name.partition(".")[0] for name in done.stderr.split()} & {"torch", "transformers", "pluggy", "numpy"}


def test_without_a_subcommand_the_help_is_shown():
    result = run_cli("bench")
    assert "kernels" in result.out + result.err


def test_nobody_takes_its_name(site):
    write_distribution(site, "thief", commands={"bench": "swift:Wrong"}, modules={"swift": "raise SystemExit(9)"})
    result = run_cli("--help")
    assert "Measure attention backends" in result.out
    assert "thief" not in result.out
    assert run_cli("bench", "kernels", "--help").code == 0
    assert run_cli("--disable-plugins", "bench", "kernels", "--help").code == 0
