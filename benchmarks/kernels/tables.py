"""A report for people: lines for the terminal, tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .report import LimitRow, Measurement, Report, Row, Summary, Versus, layer_call_us, threads_text
from .shapes import LAYERS

if TYPE_CHECKING:
    from rich.table import Table

FULL_COVERAGE = 0.95
COLUMNS = ("", "time", "±", "rate", "of limit", "times as fast as", "plan")
WIDTHS = (10, 8, 4, 7, 8, 27, 8)
SUMMARY_COLUMNS = ("", "rows", "of limit", "least", "times as fast as", "slower than the fastest other in")


def render(report: Report) -> Iterator[str | Table]:
    """What the terminal shows, piece by piece; fits into 80 columns."""
    yield "\n".join([*report.machine.lines(), *_circumstances(report)])
    yield "\nlimits by themselves"
    yield _table(("", "threads", "before", "after"), _limit_cells(report))
    yield f"\noverheads: one sequence of one token; a layer call is the call and 1/{LAYERS} of the plan"
    yield _table(("", "contender", "plan", "call", "a layer call"), _overhead_cells(report.overheads))
    for row in report.rows:
        yield f"\n{_title(row)}"
        if timed := [m for m in row.measurements if m.median_us is not None]:
            yield _table(COLUMNS, map(_cells, timed), WIDTHS)
        yield from _remarks(row)
    if summaries := report.summaries():
        yield f"\n{report.entrants[0].name} in all"
        yield _table(SUMMARY_COLUMNS, _summary_cells(summaries))
    yield from (f"NO TIME: {failure}" for failure in report.failures)


def markdown(report: Report) -> str:
    """The same for a page: a line a row, a column a contender."""
    names = [entrant.name for entrant in report.entrants]
    first = names[0]
    parts = [
        [f"`{report.command}`"],
        [f"- {line}" for line in (*report.machine.lines(), *_circumstances(report))],
        ["Limits by themselves, before and after."],
        _markdown_table(("limit", "threads", "before", "after"), _limit_cells(report)),
        [f"Overheads: one sequence of one token. A layer call is the call and 1/{LAYERS} of the plan."],
        _markdown_table(
            ("heads, dtype, threads", "contender", "plan", "call", "a layer call"), _overhead_cells(report.overheads)
        ),
        [
            "Cells: median time, GB/s or GFLOP/s, share of the limit measured beside it. Last column: how many times "
            f"faster {first} is than the fastest other, with the interval of the median."
        ],
        _markdown_table(
            ("shape", "dtype", "threads", "limit", *names, f"{first} against"), _pivot_cells(report, names)
        ),
    ]
    if summaries := report.summaries():
        parts += [[f"{first} over all rows of a kind."], _markdown_table(SUMMARY_COLUMNS, _summary_cells(summaries))]
    parts += [[f"- No time: {failure}"] for failure in report.failures]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _circumstances(report: Report) -> list[str]:
    contenders = "; ".join(_entrant(report, entrant.name, entrant.package) for entrant in report.entrants)
    disturbed = sum(row.disturbed for row in report.rows)
    rounds = sum(row.rounds for row in report.rows)
    loaded = sum(row.kept_disturbed for row in report.rows)
    load = f"load average {_number(report.load_before)} before, {_number(report.load_after)} after"
    lines = [
        f"contenders: {contenders}",
        f"{report.machine.when}, {report.seconds:.0f} s; {load}; others were busy in {disturbed} of {rounds} rounds",
    ]
    if report.interrupted:
        lines.append("interrupted: rows are missing")
    if loaded:
        lines.append(f"{loaded} rows, marked !, hold disturbed rounds for want of others: measure on a quiet machine")
    return lines


def _entrant(report: Report, name: str, package: str) -> str:
    homes = {
        f"block {m.block_size}, {m.layout}" for r in report.rows for m in r.measurements if m.name == name and m.layout
    }
    return f"{name} ({', '.join([package, *sorted(homes)])})"


def _title(row: Row) -> str:
    work = f"KV {row.kv_bytes / 2**20:.3g} MiB" if row.unit == "GB/s" else f"{row.flops / 1e9:.3g} GFLOP"
    limit = f"; {work}; limit {row.limit}: {row.limit_rate:.1f} {row.unit}" if row.limit_rate is not None else ""
    return f"{row.shape.label} {row.dtype}, {threads_text(row.threads)}{limit}"


def _cells(m: Measurement) -> tuple[str, ...]:
    return (
        m.name,
        _time(m.median_us or 0),
        f"{m.spread or 0:.0%}",
        f"{m.rate or 0:.1f}",
        f"{m.share.median:.0%}" if m.share else "",
        _versus(m.versus[0]) if m.versus else "",
        _time(m.plan_us or 0),
    )


def _remarks(row: Row) -> Iterator[str]:
    if row.skipped:
        yield f"  skipped: {row.skipped}"
    yield from (f"  {m.name}: {m.reason}" for m in row.measurements if m.reason)
    if row.disturbed:
        load = f", {row.other_load:.1f} CPUs on average" if row.other_load is not None else ""
        what = "counted all the same, too few would remain: measure again" if row.kept_disturbed else "left out"
        yield f"  others were busy in {row.disturbed} of {row.rounds} rounds{load}; {what}"


def _limit_cells(report: Report) -> Iterator[tuple[str, ...]]:
    after: dict[tuple[str, int], LimitRow] = {(limit.name, limit.threads): limit for limit in report.limits_after}
    for limit in report.limits_before:
        then = after.get((limit.name, limit.threads))
        yield (
            limit.name,
            str(limit.threads),
            f"{limit.rate:.1f} {limit.unit}",
            f"{then.rate:.1f} {then.unit}" if then else "",
        )


def _overhead_cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        heads = "/".join(map(str, row.shape.heads))
        for m in row.measurements:
            where = f"{heads} {row.dtype}, {threads_text(row.threads)}"
            if m.median_us is None:
                yield where, m.name, m.reason, "", ""
            else:
                yield where, m.name, _time(m.plan_us or 0), _time(m.median_us), _time(layer_call_us(m))


def _pivot_cells(report: Report, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for row in report.rows:
        mark = " !" if row.kept_disturbed else ""
        start = (row.shape.label + mark, row.dtype, str(row.threads))
        if row.skipped:
            yield (*start, "", row.skipped, *[""] * len(names))
            continue
        by_name = {m.name: m for m in row.measurements}
        own = row.of(names[0])
        limit = f"{row.limit_rate:.1f} {row.unit}" if row.limit_rate is not None else ""
        versus = _versus(own.versus[0]) if own and own.versus else ""
        yield (*start, limit, *(_pivot_cell(by_name.get(name)) for name in names), versus)


def _pivot_cell(m: Measurement | None) -> str:
    if m is None:
        return ""
    if m.median_us is None or m.rate is None:
        return m.reason
    share = f", {m.share.median:.0%}" if m.share else ""
    return f"{_time(m.median_us)}, {m.rate:.1f}{share}"


def _summary_cells(summaries: Sequence[Summary]) -> Iterator[tuple[str, ...]]:
    for s in summaries:
        yield (
            f"{s.what}, {s.dtype}, {threads_text(s.threads)}",
            str(s.rows),
            f"{s.share:.0%}",
            f"{s.least_share:.0%}",
            ", ".join(f"{ratio:.2f} {name}" for name, ratio in s.versus.items()),
            ", ".join(s.slower) or "none",
        )


def _versus(versus: Versus) -> str:
    """``2.10 vllm (1.98 to 2.24)``; a question mark where the interval holds with less than 95 %."""
    ratio = versus.ratio
    doubt = "" if ratio.coverage >= FULL_COVERAGE else "?"
    return f"{ratio.median:.2f} {versus.name} ({ratio.low:.2f} to {ratio.high:.2f}){doubt}"


def _time(microseconds: float) -> str:
    """Three digits and a unit."""
    for limit, scale, unit in ((999.5, 1, "µs"), (999.5e3, 1e3, "ms")):
        if microseconds < limit:
            return f"{_three(microseconds / scale)} {unit}"
    return f"{_three(microseconds / 1e6)} s"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", width=widths[index] if widths else None)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    return [line(columns), "|---" * len(columns) + "|", *map(line, rows)]
