"""The report as one HTML file: plots, tables, environment and command; nothing is fetched when it is opened."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from .report import AbReport, Point
from .verdicts import Ratio

TEMPLATE = Path(__file__).with_name("report.html.jinja")
WIDTH = 420
"""Pixels of a plot's scale."""
RADIUS = 12
"""Pixels of the largest dot."""
LEAST_ERROR = 1e-9
"""Smaller ones are drawn as this."""


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
    """An arm in the plane of time and error, in pixels; its size is its memory."""

    label: str
    x: float
    y: float
    radius: float
    """Its area is the memory, where that is known."""
    best: bool
    """Nobody beats it in everything."""
    point: Point


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
    times = [math.log(point.time) for point in points.values()]
    errors = [math.log10(max(point.error, LEAST_ERROR)) for point in points.values()]
    most = max((point.memory or 0.0 for point in points.values()), default=0.0)
    return [
        Dot(
            label=label,
            x=_spread(math.log(point.time), times),
            y=200 - _spread(math.log10(max(point.error, LEAST_ERROR)), errors) * 180 / WIDTH,
            radius=RADIUS * math.sqrt(point.memory / most) if point.memory else RADIUS / 2,
            best=label in best,
            point=point,
        )
        for label, point in points.items()
    ]


def _spread(value: float, values: list[float]) -> float:
    """From 10 % to 90 % of the width."""
    low, high = min(values), max(values)
    return WIDTH * (0.1 + 0.8 * ((value - low) / (high - low) if high > low else 0.5))


def _embedded(document: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(document, indent=1, default=str).replace("<", "\\u003c")
