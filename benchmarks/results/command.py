"""`headstock results`: what was measured before, side by side and over time."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Exit, Option

from ...core.errors import InvalidInput

if TYPE_CHECKING:
    from .records import Run
    from .store import Store
    from .views import Comparison, Series

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
EXIT_WORSE = 1

Database = Annotated[
    str | None, Option("--db", help="The results file; else HEADSTOCK_DB, or one in your data folder.", metavar="FILE")
]
Json = Annotated[bool, Option("--json", help="Print one JSON document to stdout.")]
Metric = Annotated[str, Option(help="Only this metric, or those of a pattern.", metavar="NAME")]
Workload = Annotated[str, Option(help="Only this workload, or those of a pattern.", metavar="NAME")]
Runs = Annotated[list[str], Argument(metavar="RUN...", help="Ids or their first letters, or last.")]

app = typer.Typer(add_completion=False, no_args_is_help=True, context_settings=HELP_OPTIONS)


class Format(StrEnum):
    """Of an export."""

    csv = "csv"
    json = "json"
    parquet = "parquet"


@app.callback()
def results() -> None:
    """Keep results of benchmarks and checks, and compare them.

    They come in with --save of headstock bench and headstock ab, or with
    headstock results import, which also reads what the benchmarks of vLLM
    and SGLang write.
    """


@app.command("list", context_settings=HELP_OPTIONS)
def list_runs(
    kind: Annotated[str | None, Option(help="kernels, check, ab, serve, throughput, latency…", metavar="KIND")] = None,
    subject: Annotated[str | None, Option(help="About this backend or engine.", metavar="NAME")] = None,
    limit: Annotated[int, Option(min=1, help="At most so many, the latest.")] = 20,
    db: Database = None,
    json: Json = False,
) -> None:
    """List runs, the latest first."""
    from ...entrypoints.cli.console import note, print_json, print_table

    with _store(db) as store:
        runs = store.runs(kind=kind, subject=subject, limit=limit)
        if json:
            print_json({"runs": [run.to_dict() for run in runs]})
            return
        if not runs:
            note(f"no such runs in {store.path}")
        print_table(("run", "when", "kind", "by", "subjects", "numbers", "machine"), map(_row, runs))


@app.command(context_settings=HELP_OPTIONS)
def show(
    run: Annotated[str, Argument(metavar="RUN", help="An id or its first letters, or last.")] = "last",
    db: Database = None,
    json: Json = False,
) -> None:
    """Show all numbers of a run."""
    from ...entrypoints.cli.console import print_json, print_table

    with _store(db) as store:
        found = store.find(run)
    if json:
        print_json(found.to_dict())
        return
    print(f"{found.id}: {found.kind} by {found.source}, {found.when}")
    print(*filter(None, (found.command, ", ".join(f"{k} {v}" for k, v in found.versions.items()))), sep="\n")
    if found.machine:
        print(f"{found.machine.get('cpu', 'a machine')} ({found.machine_id})")
    rows = [
        (m.subject, m.workload, m.metric, f"{m.value:.6g} {m.unit}", _right(m.right), m.package)
        for m in found.measurements
    ]
    print_table(("subject", "workload", "metric", "value", "output", "package"), rows)


@app.command(context_settings=HELP_OPTIONS)
def compare(
    runs: Runs, metric: Metric = "*", workload: Workload = "*", db: Database = None, json: Json = False
) -> None:
    """Put runs side by side: every subject a column, and how many times better than the first.

    Lines are matched by workload and metric. Runs that share no workload, as
    those of two engines' own benchmarks, are matched by metric, and it says so.
    """
    from ...entrypoints.cli.console import print_json
    from .views import compare as side_by_side

    with _store(db) as store:
        found = side_by_side([store.find(run) for run in runs], metric=metric, workload=workload)
    if not found.lines:
        raise InvalidInput("metric", f"these runs have nothing like {metric!r} on workloads like {workload!r}")
    if json:
        print_json(_comparison(found))
    else:
        _print_comparison(found)


@app.command(context_settings=HELP_OPTIONS)
def history(
    subject: Annotated[str, Argument(metavar="SUBJECT", help="A backend or an engine.")],
    metric: Metric = "*",
    workload: Workload = "*",
    db: Database = None,
    fail_if_worse: Annotated[
        bool, Option("--fail-if-worse", help="Exit code 1 where a latest point is worse.")
    ] = False,
    json: Json = False,
) -> None:
    """Show how SUBJECT's numbers went over time, a machine at a time.

    A point is called better or worse where its median differs from that of
    the eight points before it by more than runs differ: some 7 % where they
    are steady. Its interval must not hold theirs.

    Exit codes: 0 shown; 1 with --fail-if-worse, where a latest point is worse; 2 refused.
    """
    from ...entrypoints.cli.console import print_json
    from .views import history as over_time

    with _store(db) as store:
        series = over_time(store.runs(subject=subject), subject, workload=workload, metric=metric)
    if not series:
        raise InvalidInput("subject", f"there is nothing about {subject!r} with this workload and metric")
    if json:
        print_json({"series": [_series(s) for s in series]})
    else:
        _print_history(series)
    if fail_if_worse and any(s.points[-1].verdict == "worse" for s in series):
        raise Exit(EXIT_WORSE)


@app.command(context_settings=HELP_OPTIONS)
def export(
    file: Annotated[str, Argument(metavar="FILE", help="Where to write; - is stdout (not for parquet).")] = "-",
    format: Annotated[Format, Option(help="parquet needs headstock[parquet].")] = Format.csv,
    run: Annotated[list[str] | None, Option(help="Only this run; may be repeated.", metavar="RUN")] = None,
    db: Database = None,
) -> None:
    """Write runs as a table. json keeps samples, and can be imported elsewhere."""
    from .exports import write_csv, write_json, write_parquet

    with _store(db) as store:
        runs = [store.find(name) for name in run] if run else store.runs()
    if format is Format.parquet and file == "-":
        raise InvalidInput("file", "parquet is no text; name a file")
    write = write_csv if format is Format.csv else write_json
    if file == "-":
        write(runs, sys.stdout)
        return
    try:
        if format is Format.parquet:
            write_parquet(runs, Path(file))
        else:
            with open(file, "w", encoding="utf-8", newline="") as out:
                write(runs, out)
    except OSError as error:
        raise InvalidInput("file", f"{file} cannot be written: {error.strerror or error}") from error


@app.command("import", context_settings=HELP_OPTIONS)
def import_files(
    files: Annotated[list[str], Argument(metavar="FILE...", help="JSON or JSON lines; - is stdin.")],
    db: Database = None,
) -> None:
    """Take results in: documents of headstock bench, check, ab and results export, and those of vLLM's and SGLang's
    benchmarks.

    All files are read before the first is kept. What is there already is not kept twice.
    """
    from ...entrypoints.cli.console import note

    runs = [run for file in files for run in _read(file)]
    with _store(db, create=True) as store:
        new = sum(store.add(run) for run in runs)
        note(f"{new} new runs, {len(runs) - new} known ones, in {store.path}")


def _store(path: str | None, *, create: bool = False) -> Store:
    from .store import Store

    return Store(path, create=create)


def _read(file: str) -> list[Run]:
    """The runs in a file; raises `InvalidInput` naming it where there are none."""
    from .documents import read_document
    from .foreign import read_foreign

    found: list[Run] = []
    for document in _documents(file):
        try:
            own = read_document(document)
        except InvalidInput as error:
            raise InvalidInput("file", f"{file} {error.problem}") from error
        foreign = read_foreign(document) if own is None else None
        found += own or ([foreign] if foreign else [])
    if not found:
        raise InvalidInput("file", f"{file} holds no result of headstock, vLLM or SGLang")
    return found


def _documents(file: str) -> Iterator[dict[str, Any]]:
    """One JSON document, or one a line."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", f"{file} cannot be read: {error}") from error
    try:
        documents = [json_module.loads(text)]
    except (ValueError, RecursionError):
        try:
            documents = [json_module.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise InvalidInput("file", f"{file} is neither JSON nor JSON lines: {error}") from error
    return (document for document in documents if isinstance(document, dict))


def _row(run: Run) -> tuple[str, ...]:
    subjects = ", ".join(run.subjects)
    return run.id, _minute(run.when), run.kind, run.source, subjects, str(len(run.measurements)), run.machine_id


def _minute(when: str) -> str:
    return when[:16].replace("T", " ")


def _right(right: bool | None) -> str:
    return {True: "right", False: "WRONG", None: ""}[right]


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "columns": [{"run": c.run.id, "source": c.run.source, "subject": c.subject} for c in found.columns],
        "lines": [asdict(line) for line in found.lines],
        "workloads_differ": found.workloads_differ,
        "machines_differ": found.machines_differ,
    }


def _print_comparison(found: Comparison) -> None:
    from ...entrypoints.cli.console import note, print_table

    names = [f"{c.subject} ({c.run.id[:6]})" for c in found.columns]
    rows = [
        (
            line.workload,
            f"{line.metric}, {line.unit}",
            *(_cell(v, r, i) for i, (v, r) in enumerate(zip(line.values, line.ratios, strict=True))),
        )
        for line in found.lines
    ]
    print_table(("workload", "metric", *names), rows)
    if found.workloads_differ:
        note("no workload is in two of these runs: lines are matched by metric, and numbers may not be comparable")
        for column in found.columns:
            note(f"  {column.subject}: {column.run.measurements[0].workload}")
    if found.machines_differ:
        note("the runs are from different machines")


def _cell(value: float | None, ratio: float | None, index: int) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" + (f" ({ratio:.2f}x)" if index and ratio is not None else "")


def _series(series: Series) -> dict[str, Any]:
    points = [{**asdict(p), "run": p.run.id, "when": p.run.when} for p in series.points]
    return {**asdict(series), "points": points}


def _print_history(found: Sequence[Series]) -> None:
    from ...entrypoints.cli.console import print_table

    for series in found:
        print(f"\n{series.subject}: {series.workload}, {series.metric} on machine {series.machine_id or 'unknown'}")
        rows = [
            (
                _minute(p.run.when),
                p.run.id[:6],
                f"{p.value:.5g} {p.unit}",
                f"[{p.interval.low:.5g}, {p.interval.high:.5g}]" if p.interval else "",
                f"{p.ratio:.2f}x" if p.ratio is not None else "",
                p.verdict,
                f"{p.package} {p.source_hash}".strip(),
            )
            for p in series.points
        ]
        print_table(("when", "run", "value", "interval", "against before", "", "package"), rows)
