"""A comparison at the terminal, for a pull request, and as a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...entrypoints.cli.console import note, print_json, print_table
from .report import AbReport, Line

if TYPE_CHECKING:
    from .gathered import Gathered
    from .options import ReportOptions


def show(report: AbReport, output: ReportOptions) -> None:
    """On stdout one form; in a file another."""
    _write(output, report.to_dict(), [report])
    if output.json:
        print_json(report.to_dict())
    elif output.markdown:
        print(to_markdown(report), end="")
    else:
        _print(report)


def show_gathered(found: Gathered, output: ReportOptions) -> None:
    """The same of comparisons on many machines, one after the other."""
    _write(output, found.to_dict(), found.reports)
    if output.json:
        print_json(found.to_dict())
    elif output.markdown:
        print("\n".join(map(to_markdown, found.reports)), end="")
    else:
        places = [(o.node, o.request) for o in found.outcomes if o.document is not None]
        for report, (node, request) in zip(found.reports, places, strict=True):
            print(f"\non {node} ({request}): {report.machine.lines()[0]}")
            _print(report)
    for outcome in found.failures:
        note(f"{outcome.arm} on {outcome.node} ({outcome.request}) was not compared: {outcome.error}")


def _write(output: ReportOptions, document: Mapping[str, Any], reports: Sequence[AbReport]) -> None:
    """The HTML file, where one is wanted and there is something to show."""
    if output.html is not None and reports:
        from .html import to_html

        Path(output.html).write_text(to_html(*reports, document=document), encoding="utf-8")
        note(f"written to {output.html}")


def _print(report: AbReport) -> None:
    print_table(_heads(report), ([line.title, *_cells(report, line)] for line in report.lines))
    print()
    for comparison in report.comparisons:
        print(f"{comparison.arm} against {report.baseline}: {comparison}")
        for reason in comparison.reasons:
            print(f"  {reason}")
    for arm, values in report.numerics.items():
        print(f"{arm}: " + ", ".join(f"{name} {value:.3g}" for name, value in values.items()))
    if len(report.arms) > 2:
        print(_undominated(report))
    for text in report.notes:
        note(f"note: {text}")


def _undominated(report: AbReport) -> str:
    points = report.points()
    third = " and memory" if any(point.memory for point in points.values()) else ""
    shown = [f"{arm} ({points[arm].time:.3g} of the time)" for arm in report.pareto()]
    return f"beaten by none in time, error{third} together: {', '.join(shown) or 'none'}"


def _heads(report: AbReport) -> list[str]:
    return ["workload", f"{report.baseline}", *(c.arm for c in report.comparisons)]


def _cells(report: AbReport, line: Line) -> Iterator[str]:
    for arm in report.arms:
        value = line.values.get(arm.label)
        if value is None:
            yield line.reasons.get(arm.label, "") or "-"
            continue
        ratio = line.ratios.get(arm.label)
        error = f", error {line.errors[arm.label]:.1e}" if arm.label in line.errors else ""
        yield f"{value:.4g} {line.unit}{error}" + (f"; {ratio.word} {ratio}" if ratio else "")


def to_markdown(report: AbReport) -> str:
    """A summary for a pull request."""
    lines = [f"**{c.arm}** against **{report.baseline}**: {c}" for c in report.comparisons]
    lines += [f"- {c.arm}: {reason}" for c in report.comparisons for reason in c.reasons]
    heads = _heads(report)
    lines += ["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += [
        "| " + " | ".join([_plain(line.title), *map(_plain, _cells(report, line))]) + " |" for line in report.lines
    ]
    lines += [""] + [
        f"- {arm}: " + ", ".join(f"{k} {v:.3g}" for k, v in n.items()) for arm, n in report.numerics.items()
    ]
    lines += [f"- {_undominated(report)}"] if len(report.arms) > 2 else []
    lines += [f"Note: {text}." for text in report.notes]
    lines += ["", f"{report.machine.lines()[0]}", "", f"`{report.command}`", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Without what ends a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
