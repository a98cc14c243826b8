"""A picture of a run: how long requests waited, and what came when. Needs matplotlib, from the extra `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.errors import InvalidInput
from ...entrypoints.cli.extras import require_extra
from ..engine.metrics import LATENCIES
from .report import Report, heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: str | None) -> None:
    """Raise before minutes of work whose picture could not be drawn."""
    if path is None:
        return
    if Path(path).suffix not in FORMATS:
        raise InvalidInput("plot", f"{path} must end in one of {', '.join(FORMATS)}")
    require_extra("--plot", "bench", ("matplotlib",))


def draw(report: Report, path: str) -> None:
    """Write the picture; its format is the ending's."""
    from matplotlib.figure import Figure  # not pyplot, which would look for a screen

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle("\n".join(heading(report)), fontsize=9)
    waiting, coming = figure.subplots(2, 1)
    _distributions(report, waiting)
    _over_time(report, coming)
    figure.savefig(path)


def _distributions(report: Report, axes: Axes) -> None:
    """Share of requests (of gaps, for ITL) that waited no longer."""
    timelines = report.timelines
    values = {
        "ttft": [t.ttft for t in timelines],
        "tpot": [t.tpot for t in timelines if t.tpot is not None],
        "itl": [gap for t in timelines for gap in t.itl],
        "e2el": [t.e2el for t in timelines],
    }
    for name in LATENCIES:
        if values[name]:
            milliseconds = np.sort(np.asarray(values[name], dtype=float)) * 1e3
            axes.step(milliseconds, np.arange(1, len(milliseconds) + 1) / len(milliseconds), label=name.upper())
    axes.set(xscale="log", xlabel="milliseconds", ylabel="share no longer than")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _over_time(report: Report, axes: Axes) -> None:
    """Tokens a second, and requests under way."""
    times = np.asarray([o.sent + t for o in report.outcomes if o.timeline for t in o.timeline.token_times])
    bins = np.linspace(0, report.elapsed, 61)
    counts, _ = np.histogram(times, bins)
    axes.step(bins[:-1], counts / (bins[1] - bins[0]), where="post", label="pieces of answers a second")
    axes.set(xlabel="seconds", ylabel="pieces/s")
    spans = [(o.sent, o.ended) for o in report.outcomes if o.ended is not None]
    middles = (bins[:-1] + bins[1:]) / 2
    running = [sum(start <= at <= end for start, end in spans) for at in middles]
    beside = axes.twinx()
    beside.plot(middles, running, color="tab:orange", label="requests under way")
    beside.set(ylabel="requests")
    axes.grid(visible=True, alpha=0.3)
    handles = [*axes.get_legend_handles_labels()[0], *beside.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="best")
