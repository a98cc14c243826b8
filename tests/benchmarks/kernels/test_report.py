"""What follows from rows, and how it is shown."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from headstock.benchmarks.kernels.report import (
    Entrant,
    LimitRow,
    Measurement,
    Report,
    Row,
    Versus,
    layer_call_us,
)
from headstock.benchmarks.kernels.shapes import choose
from headstock.benchmarks.kernels.tables import markdown, render
from headstock.benchmarks.machine import Cache, Machine
from headstock.benchmarks.statistics import Interval

MACHINE = Machine(
    cpu="A CPU",
    arch="x86_64",
    cpus=2,
    features=("avx2",),
    memory_bytes=24 * 2**30,
    caches=(Cache(level=3, kind="Unified", nbytes=32 * 2**20, shared_by=2),),
    huge_pages="madvise",
    system="Linux 6",
    python="3.11.9",
    torch="2.13.0",
    headstock="0.1.0",
    wait_policy="passive",
    when="2026-01-02T03:04:05+00:00",
)


def exactly(value, half=0.0, coverage=0.97):
    return Interval(median=value, low=value - half, high=value + half, coverage=coverage)


def timed(name, microseconds, share, versus=(), **fields):
    return Measurement(
        name=name,
        block_size=16,
        layout="hnd",
        plan_us=30.0,
        median_us=microseconds,
        spread=0.02,
        samples_us=(microseconds,),
        calls=1,
        rate=1.5,
        share=exactly(share),
        versus=tuple(Versus(name=other, ratio=ratio) for other, ratio in versus),
        **fields,
    )


def row(label, *measurements, threads=1, **fields):
    (shape,) = choose(label, "all", ())
    base = {"unit": "GB/s" if shape.phase == "decode" else "GFLOP/s", "limit": "read 1 MiB", "limit_rate": 20.0}
    return Row(
        shape=shape,
        dtype="float32",
        threads=threads,
        kv_bytes=shape.kv_bytes("float32"),
        flops=shape.flops,
        measurements=measurements,
        rounds=9,
        **{**base, **fields},
    )


WITHIN, BEYOND, FAR = "decode:9/3/64:1x1k", "decode:9/3/64:64x1k", "decode:9/3/64:64x4k"


def report(*rows, overheads=(), **fields):
    base = {
        "machine": MACHINE,
        "command": "headstock bench kernels",
        "load_before": 0.1,
        "load_after": None,
        "seconds": 12.0,
        "entrants": (Entrant(name="cpu", package="headstock 0.1.0"), Entrant(name="vllm", package="0.32.0")),
        "limits_before": (LimitRow(name="read 256 MiB", threads=1, unit="GB/s", rate=17.0),),
        "limits_after": (LimitRow(name="read 256 MiB", threads=1, unit="GB/s", rate=16.0),),
    }
    return Report(rows=rows, overheads=overheads, **{**base, **fields})


@pytest.fixture
def whole():
    return report(
        row(WITHIN, timed("cpu", 50.0, 0.5, [("vllm", exactly(2.0))]), timed("vllm", 100.0, 0.25)),
        row(BEYOND, timed("cpu", 9e3, 0.9, [("vllm", exactly(3.0, 0.25))]), timed("vllm", 27e3, 0.3)),
        row(FAR, timed("cpu", 9e4, 0.7, [("vllm", exactly(0.5, 0.1, 0.75))]), timed("vllm", 45e3, 1.4)),
        row("prefill:9/3/64:512", Measurement(name="cpu", reason="wrong: error 1", failed=True), disturbed=4),
        row("chunk:9/3/64:256+4k", skipped="K and V take 9 GiB", unit="", limit_rate=None),
        overheads=(row("decode:9/3/64:1x1", timed("cpu", 4.0, 0.1), timed("vllm", 9.0, 0.1)),),
    )


def shown(it):
    out = StringIO()
    console = Console(file=out, width=80, highlight=False)
    for piece in render(it):
        console.print(piece, markup=False)
    return out.getvalue()


def test_a_summary_parts_what_fits_into_the_cache_from_what_does_not(whole):
    beyond, within = sorted(whole.summaries(), key=lambda s: s.what)
    assert (within.what, within.rows, within.share) == ("decode within the cache", 1, 0.5)
    assert (beyond.what, beyond.rows) == ("decode beyond the cache", 2)
    assert (beyond.share, beyond.least_share) == (pytest.approx(0.8), 0.7)
    assert beyond.versus == {"vllm": pytest.approx(1.75)}


def test_a_summary_names_the_shapes_in_which_another_is_faster_beyond_doubt(whole):
    slower = {s.what: s.slower for s in whole.summaries()}
    assert slower == {"decode within the cache": (), "decode beyond the cache": (FAR,)}


def test_rows_on_different_threads_are_summed_up_apart():
    it = report(row(WITHIN, timed("cpu", 1.0, 0.5)), row(WITHIN, timed("cpu", 1.0, 0.4), threads=2))
    assert [(s.threads, s.share) for s in it.summaries()] == [(1, 0.5), (2, 0.4)]


def test_a_first_contender_without_times_has_no_summary():
    assert report(row(WITHIN, timed("vllm", 1.0, 0.5))).summaries() == []


def test_a_layer_call_bears_a_thirtieth_of_the_plan():
    assert layer_call_us(timed("cpu", 4.0, 0.1)) == 4.0 + 30.0 / 30


def test_failures_are_those_that_should_have_had_a_time(whole):
    assert whole.failures == ["cpu, prefill:9/3/64:512 float32 1 thread: wrong: error 1"]


def test_the_terminal_shows_everything_in_80_columns(whole):
    text = shown(whole)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "decode:9/3/64:64x1k float32, 1 thread; KV 96 MiB; limit read 1 MiB: 20.0 GB/s",
        "cpu        9.00 ms  2%   1.5     90%      3.00 vllm (2.75 to 3.25)    30.0 µs",
        "0.50 vllm (0.40 to 0.60)?",
        "cpu: wrong: error 1",
        "skipped: K and V take 9 GiB",
        "others were busy in 4 of 9 rounds; left out",
        "read 256 MiB 1       17.0 GB/s 16.0 GB/s",
        "9/3/64 float32, 1 thread cpu       30.0 µs 4.00 µs 5.00 µs",
        "cpu in all",
        "NO TIME: cpu, prefill:9/3/64:512",
        "load average 0.10 before, unknown",
    ):
        assert part in " ".join(text.split("\n")) or part in text, part


def test_markdown_has_a_line_a_row_and_a_column_a_contender(whole):
    lines = markdown(whole).splitlines()
    assert (
        f"| {BEYOND} | float32 | 1 | 20.0 GB/s | 9.00 ms, 1.5, 90% | 27.0 ms, 1.5, 30% | 3.00 vllm (2.75 to 3.25) |"
        in lines
    )
    assert "| chunk:9/3/64:256+4k | float32 | 1 |  | K and V take 9 GiB |  |  |" in lines
    heads = [i for i, line in enumerate(lines) if line.startswith("|---")]
    assert len(heads) == 4
    for head in heads:
        columns = lines[head].count("|")
        assert lines[head - 1].count("|") == columns
        end = next((i for i in range(head, len(lines)) if not lines[i]), len(lines))
        assert {line.count("|") for line in lines[head:end]} == {columns}


def test_what_is_doubtful_is_marked():
    loaded = report(row(WITHIN, timed("cpu", 1.0, 0.5), disturbed=9, kept_disturbed=True, other_load=1.5))
    text = " ".join(shown(loaded).split())
    assert "others were busy in 9 of 9 rounds, 1.5 CPUs on average; counted all the same" in text
    assert f"| {WITHIN} ! |" in markdown(loaded)
    assert "interrupted: rows are missing" in shown(report(interrupted=True))


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0.25, "0.25 µs"), (12.34, "12.3 µs"), (999.4, "999 µs"), (999.6, "1.00 ms"), (2.5e6, "2.50 s")],
)
def test_times_have_three_digits(microseconds, text):
    assert text in markdown(report(row(WITHIN, timed("cpu", microseconds, 0.5))))
