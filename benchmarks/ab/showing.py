"""A comparison at the terminal, for a pull request, and as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...entrypoints.cli.console import note, print_json, print_table
from .report import AbReport, Line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")


class Bar:
    """A progress bar that says what is being done."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def during(self, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, one step."""
        self.say(what)
        result = call()
        self.advance()
        return result

    def each(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """`items`, a step each."""
        self.say(what)
        for item in items:
            yield item
            self.advance()


@contextmanager
def progress(steps: int) -> Iterator[Bar]:
    """A bar of so many steps on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown, shown.add_task("starting the arms", total=steps))


def show(report: AbReport, *, html: str | None, markdown: bool, json: bool) -> None:
    """On stdout one form; in the file `html` another."""
    if html is not None:
        from .html import to_html

        Path(html).write_text(to_html(report), encoding="utf-8")
        note(f"written to {html}")
    if json:
        print_json(report.to_dict())
    elif markdown:
        print(to_markdown(report), end="")
    else:
        _print(report)


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
        print(f"not beaten in both time and error: {', '.join(report.pareto()) or 'none'}")
    for text in report.notes:
        note(f"note: {text}")


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
    lines += [f"Note: {text}." for text in report.notes]
    lines += ["", f"{report.machine.lines()[0]}", "", f"`{report.command}`", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Without what ends a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
