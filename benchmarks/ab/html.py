"""The report as one HTML file: plots, tables, environment and command; nothing is fetched when it is opened."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from .report import AbReport
from .verdicts import Ratio

TEMPLATE = Path(__file__).with_name("report.html.jinja")
WIDTH = 420
"""Pixels of a plot's scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """A ratio with its interval on the logarithmic scale of the plot, in pixels."""

    name: str
    arm: str
    word: str
    text: str
    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """An arm in the plane of time and error, in pixels."""

    label: str
    x: float
    y: float
    best: bool
    """Nobody beats it in both."""
    text: str


class Scale:
    """Ratios from 1/`most` to `most` on `WIDTH` pixels."""

    def __init__(self, ratios: list[Ratio]) -> None:
        ends = [abs(math.log(x)) for r in ratios for x in (r.low, r.high) if 0 < x < math.inf]
        self.most = min(max([*ends, math.log(1.1)]) * 1.05, math.log(1000))

    def at(self, ratio: float) -> float:
        place = math.log(ratio) if ratio > 0 else -math.inf
        return WIDTH / 2 * (1 + max(-1.0, min(1.0, place / self.most)))

    def ticks(self) -> list[tuple[float, str]]:
        edge = math.exp(self.most)
        return [(self.at(x), f"{x:.3g}") for x in (1 / edge, 1.0, edge)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the template shows of one report."""

    report: AbReport
    ticks: list[tuple[float, str]]
    whiskers: list[Whisker]
    dots: list[Dot]
    machine: list[str]


def to_html(*reports: AbReport, document: Mapping[str, Any] | None = None) -> str:
    """The page, which holds its JSON: the report's own, or `document` of several."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        pages=[_page(report) for report in reports],
        width=WIDTH,
        document=_embedded(reports[0].to_dict() if document is None else document),
    )


def _page(report: AbReport) -> Page:
    whole = [c.ratio for c in report.comparisons if c.ratio]
    scale = Scale([*whole, *(r for line in report.lines for r in line.ratios.values())])
    return Page(
        report=report,
        ticks=scale.ticks(),
        whiskers=list(_whiskers(report, scale)),
        dots=_dots(report),
        machine=report.machine.lines(),
    )


def _whiskers(report: AbReport, scale: Scale) -> Iterator[Whisker]:
    for comparison in report.comparisons:
        if comparison.ratio:
            yield _whisker("all", comparison.arm, comparison.ratio, scale)
    for line in report.lines:
        for arm, ratio in line.ratios.items():
            yield _whisker(line.title, arm, ratio, scale)


def _whisker(name: str, arm: str, ratio: Ratio, scale: Scale) -> Whisker:
    return Whisker(
        name=name,
        arm=arm,
        word=ratio.word,
        text=str(ratio),
        at=scale.at(ratio.estimate),
        low=scale.at(ratio.low),
        high=scale.at(ratio.high),
    )


def _dots(report: AbReport) -> list[Dot]:
    """Arms by time (left is faster) and error (down is more exact), both logarithmic."""
    points, best = report.points(), report.pareto()
    if len(points) < 2:
        return []
    floor = 1e-9
    times = [math.log(time) for time, _ in points.values()]
    errors = [math.log10(max(error, floor)) for _, error in points.values()]
    return [
        Dot(
            label=label,
            x=_spread(math.log(time), times),
            y=200 - _spread(math.log10(max(error, floor)), errors) * 180 / WIDTH,
            best=label in best,
            text=f"{label}: {time:.3g} of the baseline's time, error {error:.1e}",
        )
        for label, (time, error) in points.items()
    ]


def _spread(value: float, values: list[float]) -> float:
    """From 10 % to 90 % of the width."""
    low, high = min(values), max(values)
    return WIDTH * (0.1 + 0.8 * ((value - low) / (high - low) if high > low else 0.5))


def _embedded(document: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(document, indent=1, default=str).replace("<", "\\u003c")
