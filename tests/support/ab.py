"""Reports of comparisons, made up."""

from __future__ import annotations

from typing import Any

from headstock.benchmarks.ab.report import AbReport, ArmReport, Comparison, Line
from headstock.benchmarks.ab.verdicts import Ratio
from headstock.benchmarks.machine import describe
from headstock.selector import find_device

RATIO = Ratio(estimate=1.21, low=1.17, high=1.25, pairs=30)


def arm_report(label: str, *problems: str, **fields: Any) -> ArmReport:
    fields = {
        "options": {},
        "python": "python",
        "package": "kernels 1.0",
        "torch": "2.13",
        "source_hash": "abc",
        **fields,
    }
    return ArmReport(label=label, backend=label, problems=problems, **fields)


def ab_report(*others: str, baseline: str = "a", ratio: Ratio = RATIO, **fields: Any) -> AbReport:
    """`others` against `baseline`, each as many times as fast as `ratio` says."""
    line = Line(
        name="decode:9/3/64:1x1k float32 1 thread",
        unit="us",
        values={baseline: 121.0, **dict.fromkeys(others, 100.0)},
        errors={baseline: 1e-7, **dict.fromkeys(others, 2e-7)},
        ratios=dict.fromkeys(others, ratio),
        samples={baseline: (120.0, 121.0, 122.0), **dict.fromkeys(others, (99.0, 100.0, 101.0))},
    )
    made = {
        "level": "kernel",
        "command": "headstock ab",
        "machine": describe(find_device("cpu")),
        "seconds": 1.0,
        "rounds": 30,
        "arms": tuple(map(arm_report, (baseline, *others))),
        "lines": (line,),
        "comparisons": tuple(Comparison(arm=arm, verdict=ratio.word, ratio=ratio) for arm in others),
        **fields,
    }
    return AbReport(**made)
