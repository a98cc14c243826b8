"""The HTML report: whole in itself, and the same numbers in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from headstock.benchmarks.ab.html import to_html
from headstock.benchmarks.ab.report import AbReport, ArmReport, Comparison, Line, Point
from headstock.benchmarks.ab.showing import to_markdown
from headstock.benchmarks.ab.verdicts import Ratio
from headstock.benchmarks.machine import describe
from headstock.selector import find_device
from support.ab import ab_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RATIO = Ratio(estimate=1.21, low=1.17, high=1.25, pairs=30)
WORST = '<script>alert("x")</script>'


def arm(label: str, *problems: str) -> ArmReport:
    return ArmReport(
        label=label, backend=label, options={"note": WORST}, python="python", package="kernels 1.0", torch="2.13",
        source_hash="abc", problems=problems,
    )  # fmt: skip


@pytest.fixture
def report() -> AbReport:
    line = Line(
        name="decode:9/3/64:1x1k float32 1 thread",
        unit="us",
        values={"a": 121.0, "b": 100.0},
        errors={"a": 1e-7, "b": 2e-7},
        ratios={"b": RATIO},
        reasons={WORST: "failed: boom"},
    )
    return AbReport(
        level="kernel", command="headstock ab a b", machine=describe(find_device("cpu")), seconds=1.0, rounds=30,
        arms=(arm("a"), arm("b"), arm(WORST, "breaks window")), lines=(line,),
        comparisons=(
            Comparison(arm="b", verdict="faster", ratio=RATIO),
            Comparison(arm=WORST, verdict="wrong", ratio=None, reasons=("breaks window",)),
        ),
        notes=("others kept up to 0.4 CPUs busy",),
    )  # fmt: skip


def test_nothing_is_fetched_and_nothing_of_others_is_run(report):
    page = to_html(report)
    assert not re.findall(r"""(?:src|href)\s*=|@import|url\(""", page)
    assert WORST not in page
    assert page.count("<script") == 1  # the result as JSON
    embedded = re.search(r'<script type="application/json" id="result">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1]) == json.loads(json.dumps(report.to_dict(), default=str))


def test_intervals_without_an_end_stay_on_the_plot(report):
    endless = Ratio(estimate=2.0, low=0.0, high=float("inf"), pairs=3)
    line = replace(report.lines[0], ratios={"b": endless})
    page = to_html(replace(report, lines=(line,), comparisons=(replace(report.comparisons[0], ratio=endless),)))
    assert not re.findall(r'="(?:nan|inf|-inf)"', page)
    document = replace(report, lines=(line,), comparisons=(replace(report.comparisons[0], ratio=endless),)).to_dict()
    assert json.loads(json.dumps(document, allow_nan=False, default=str))["ratio"]["high"] is None
    assert to_html(replace(report, lines=(), comparisons=(report.comparisons[1],)))


def engine_report() -> AbReport:
    """Of whole engines: b is faster than a and takes more memory, c is slower and takes as much as b."""
    slower = Ratio(estimate=0.5, low=0.4, high=0.6, pairs=16)
    memory = Line(name="m", metric="peak_memory", unit="MiB", values={"a": 500.0, "b": 2000.0, "c": 2000.0})
    base = ab_report("b", "c", level="engine")
    return replace(
        base,
        lines=(replace(base.lines[0], errors={}), memory),
        numerics={"b": {"token agreement": 1.0, "mean KL": 1e-9}, "c": {"token agreement": 0.9, "mean KL": 1e-6}},
        comparisons=(base.comparisons[0], Comparison(arm="c", verdict="slower", ratio=slower)),
    )


def test_arms_are_beaten_where_another_is_better_in_everything():
    report = engine_report()
    assert report.pareto() == ["a", "b"]  # the baseline takes the least memory
    assert report.points()["c"] == Point(time=2.0, error=1e-6, memory=2000.0)
    assert report.to_dict()["points"]["b"]["memory"] == 2000.0
    without = replace(report, lines=report.lines[:1])
    assert without.pareto() == ["a", "b"]  # the baseline is the most exact by definition
    assert "beaten by none in time, error and memory together: a (1 of the time), b (0.826 of the time)" in to_markdown(
        report
    )


@pytest.mark.skipif(CHROMIUM is None, reason="NOT TESTED IN A BROWSER: no chromium on this machine")
def test_a_browser_shows_arms_by_time_error_and_memory(tmp_path):
    dom = dumped(tmp_path, to_html(engine_report()))
    plot = dom[dom.index('<svg class="pareto"') : dom.index('<table class="pareto">')]
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"( style="[^"]*")?>', plot)
    (ax, ay, ar, a_hollow), (bx, by, br, b_hollow), (cx, cy, cr, c_hollow) = dots
    assert float(bx) < float(ax) < float(cx)  # faster is further left
    assert float(ay) == float(by) > float(cy)  # more exact is further down
    assert float(br) == float(cr) == pytest.approx(2 * float(ar))  # four times the memory, the area
    assert (bool(a_hollow), bool(b_hollow), bool(c_hollow)) == (False, False, True)
    assert dom.count("<td>beaten by none</td>") == 2
    assert "<td>2000</td>" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="NOT TESTED IN A BROWSER: no chromium on this machine")
def test_a_browser_shows_the_verdict_the_plot_and_the_table(report, tmp_path):
    dom = dumped(tmp_path, to_html(report))
    assert '<span class="faster">faster ×1.21 [1.17, 1.25]</span>' in dom  # noqa: RUF001
    assert dom.count('<circle cx="') == 2 + 2  # the ratio over all and of the line; two dots by time and error
    assert "&lt;script&gt;alert" in dom
    shot = tmp_path / "shot.png"
    browser(tmp_path, f"--screenshot={shot}", "--window-size=1200,1400")
    assert shot.stat().st_size > 10_000


def dumped(folder: Path, page: str) -> str:
    """The page as a browser without a network has read it."""
    (folder / "report.html").write_text(page, encoding="utf-8")
    return browser(folder, "--dump-dom")


def browser(folder: Path, *options: str) -> str:
    """What it says of ``report.html`` in `folder`."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder}/p", "--host-resolver-rules=MAP * ~NOTFOUND", *options]
    done = subprocess.run(
        [*command, (folder / "report.html").as_uri()],
        capture_output=True, text=True, check=True, timeout=100, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout
