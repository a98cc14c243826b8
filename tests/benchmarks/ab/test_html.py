"""The HTML report: whole in itself, and the same numbers in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from headstock.benchmarks.ab.html import to_html
from headstock.benchmarks.ab.report import AbReport, ArmReport, Comparison, Line
from headstock.benchmarks.ab.verdicts import Ratio
from headstock.benchmarks.machine import describe
from headstock.selector import find_device

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


@pytest.mark.skipif(CHROMIUM is None, reason="NOT TESTED IN A BROWSER: no chromium on this machine")
def test_a_browser_shows_the_verdict_the_plot_and_the_table(report, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(to_html(report), encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}/p",
    ]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND"]
    environ = {**os.environ, "HOME": str(tmp_path)}
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *options, *offline, "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=100, env=environ,
    )  # fmt: skip
    dom = done.stdout
    assert '<span class="faster">faster ×1.21 [1.17, 1.25]</span>' in dom  # noqa: RUF001
    assert dom.count('<circle cx="') == 2 + 2  # the ratio over all and of the line; two dots by time and error
    assert "&lt;script&gt;alert" in dom
    shot = tmp_path / "shot.png"
    subprocess.run(
        [CHROMIUM, *options, *offline, f"--screenshot={shot}", "--window-size=1200,1400", path.as_uri()],
        capture_output=True, check=True, timeout=100, env=environ,
    )  # fmt: skip
    assert shot.stat().st_size > 10_000
