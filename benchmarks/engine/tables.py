"""A report for people: a line a metric, a column an arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .report import ArmResult, Report, Series

LINES = {
    "output tokens/s": ("output_throughput",),
    "all tokens/s": ("total_token_throughput",),
    "requests/s": ("request_throughput",),
    "TTFT ms, median / p99": ("ttft_median", "ttft_p99"),
    "TPOT ms, median / p99": ("tpot_median", "tpot_p99"),
    "ITL ms, median / p99": ("itl_median", "itl_p99"),
    "E2EL ms, median / p99": ("e2el_median", "e2el_p99"),
}
FULL_COVERAGE = 0.95


def heading(report: Report) -> list[str]:
    """What was measured, and where."""
    load = " before, ".join("unknown" if x is None else f"{x:.2f}" for x in (report.load_before, report.load_after))
    lines = [
        f"{report.kind} of {report.model} in {report.dtype} on {report.device}, "
        f"{report.threads} thread{'s' if report.threads > 1 else ''}",
        f"workload: {report.workload}; {report.num_prompt_tokens:,} prompt and {report.num_output_tokens:,} new tokens "
        f"a turn",
        *report.machine.lines(),
        f"{report.machine.when}, {report.seconds:.0f} s, {report.rounds} rounds; load average {load} after; "
        f"others were busy in {report.disturbed} rounds"
        + (f", {report.other_load:.1f} CPUs on average" if report.other_load is not None else ""),
    ]
    if report.kept_disturbed:
        lines.append("those rounds count, as too few would remain: measure again on a quiet machine")
    lines += [f"{arm.name}: {line}" for arm in report.arms for line in arm.attention]
    return lines


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headings and lines. A cell is the median of the rounds, with the width of their middle half."""
    arms = [arm for arm in report.arms if arm.metrics]
    rows = [[title, *(_cell(arm, names) for arm in arms)] for title, names in LINES.items()]
    if any(arm.ratio for arm in arms):
        rows.append([f"times as fast as {report.arms[0].name}", *(_ratio(arm) for arm in arms)])
        rows.append([f"same tokens as {report.arms[0].name}", *(_share(arm.agreement) for arm in arms)])
    if any(arm.num_cached_tokens for arm in arms):
        rows.append(["prompt tokens from the cache", *(f"{arm.num_cached_tokens:,}" for arm in arms)])
    if any(arm.num_preemptions for arm in arms):
        rows.append(["preemptions", *(str(arm.num_preemptions) for arm in arms)])
    return ["", *(arm.name for arm in arms)], rows


def remarks(report: Report) -> Iterator[str]:
    """Who has no numbers, and why."""
    yield from (f"NO NUMBERS: {failure}" for failure in report.failures)


def markdown(report: Report) -> str:
    """The same for a page."""
    columns, rows = table(report)
    parts = [[f"`{report.command}`"], [f"- {line}" for line in heading(report)], _markdown_table(columns, rows)]
    if lines := list(remarks(report)):
        parts.append([f"- {line}" for line in lines])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _cell(arm: ArmResult, names: Sequence[str]) -> str:
    series = [arm.metrics[name] for name in names if arm.metrics and name in arm.metrics]
    if not series:
        return "—"
    return " / ".join(_number(one.median) for one in series) + _spread(series[0])


def _spread(series: Series) -> str:
    return f" ±{series.spread:.0%}" if len(series.samples) > 1 else ""


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _ratio(arm: ArmResult) -> str:
    """``1.31 (1.25 to 1.36)``; a question mark where the interval holds with less than 95 %."""
    if arm.ratio is None:
        return ""
    doubt = "" if arm.ratio.coverage >= FULL_COVERAGE else "?"
    return f"{arm.ratio.median:.2f} ({arm.ratio.low:.2f} to {arm.ratio.high:.2f}){doubt}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    return [line(columns), "|---" * len(columns) + "|", *map(line, rows)]
