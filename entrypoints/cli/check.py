"""`headstock check`: whether a backend keeps every convention of the contract, case by case."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from . import options
from .console import check_writable, note, print_json, print_table, show_log

if TYPE_CHECKING:
    from ...plugins.conformance import Report
    from ..check_worker import Message
    from ..checking import Order

EXIT_FAILED = 1


class Level(StrEnum):
    """How much is checked."""

    quick = "quick"
    full = "full"


def check(
    backend: Annotated[str, Argument(metavar="NAME", help="A backend, as headstock backends lists it.")],
    device: Annotated[
        str | None, Option(help="A device here, e.g. cpu or cuda:1; else the best here.", metavar="NAME")
    ] = None,
    level: Annotated[Level, Option(help="full has more sizes, dtypes and made-up cases.")] = Level.quick,
    case: Annotated[
        str | None, Option(help="Only this case, those of a pattern (window:*), or mixed:PROBLEM.", metavar="ID")
    ] = None,
    seed: Annotated[int, Option(help="Of the made-up cases.")] = 0,
    attention_backend_config: Annotated[
        str | None,
        Option(help="Options of backends, an object by name.", metavar="JSON|FILE", rich_help_panel=options.CHOICE),
    ] = None,
    aiter_ops: options.AiterOps = None,
    fail_fast: Annotated[bool, Option("--fail-fast", help="Stop at the first failure.")] = False,
    timeout: Annotated[float, Option(min=0.1, help="Seconds that a case may take.")] = 120.0,
    in_process: Annotated[
        bool, Option("--in-process", help="Run in this process, for a debugger: a crash ends it.")
    ] = False,
    json: options.Json = False,
    junit: Annotated[str | None, Option(help="Also write the report as JUnit XML.", metavar="FILE")] = None,
    verbose: options.Verbose = False,
) -> None:
    """Check backend NAME against every convention of the contract.

    Cases for what it does not declare are skipped, with what it declares. A
    failure comes with the smallest problem found that fails and a command that
    repeats it. A crash or a case that hangs fails that case only.

    Exit codes: 0 it conforms; 1 a case fails; 2 refused, with the reason.
    """
    show_log(verbose)
    from ..checking import Order

    check_writable("junit", junit)
    order = Order(
        backend=backend,
        device=device,
        config=attention_backend_config,
        aiter_ops=tuple(aiter_ops or ()),
        level=level.value,
        seed=seed,
        case=case,
    )
    if in_process:
        from ..check_worker import work

        told: Iterable[Message] = work(asdict(order))
    else:
        from ..check_process import messages

        told = messages(order, timeout)
    report = _collect(order, told, fail_fast=fail_fast)
    if junit is not None:
        Path(junit).write_text(report.to_junit(), encoding="utf-8")
    if json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.conforms:
        raise Exit(EXIT_FAILED)


def _collect(order: Order, told: Iterable[Message], *, fail_fast: bool) -> Report:
    """The report that the messages amount to; a bar on stderr meanwhile, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ...plugins.conformance import Outcome, Report

    outcomes: list[Outcome] = []
    about: Message = {}
    unrun = 0
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("loading", total=None)
        for message in told:
            match message["event"]:
                case "prepared":
                    about = message
                    progress.update(bar, total=message["cases"], description="checking")
                case "started":
                    progress.update(bar, description=message["convention"])
                case "ended":
                    outcomes.append(Outcome(**message["outcome"]))
                    progress.advance(bar)
                    if fail_fast and outcomes[-1].status == "failed":
                        break
                case _:
                    unrun = message.get("unrun", 0)
    return Report(
        backend=about["backend"],
        package=about["package"],
        source_hash=about["source_hash"],
        device=about["device"],
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        command=_command(order),
        level=order.level,
        seed=order.seed,
        outcomes=tuple(outcomes),
        unrun=unrun,
    )


def _command(order: Order) -> str:
    words = ["headstock", "check", order.backend]
    words += ["--device", order.device] if order.device else []
    words += ["--attention-backend-config", order.config] if order.config else []
    words += [word for op in order.aiter_ops for word in ("--aiter-op", op)]
    return shlex.join(words)


def _print(report: Report) -> None:
    """The report card."""
    note(f"{report.backend} ({report.package}) on {report.device}, level {report.level}, seed {report.seed}")
    rows: list[tuple[str, ...]] = []
    for name, count in report.counts().items():
        numbers = (str(n) if n else "" for n in (count.passed, count.skipped, count.failed))
        rows.append(
            (name, {"passed": "ok", "skipped": "-", "failed": "FAILED"}[count.verdict], *numbers, _why(report, name))
        )
    print_table(("convention", "", "pass", "skip", "fail", "skipped because"), rows)
    for name, count in report.counts().items():
        if count.failed:
            _print_failures(report, name, count.failed)
    print(f"\n{_verdict(report)}")


def _why(report: Report, convention: str) -> str:
    """The reasons for skipped cases, each field that was asked for once."""
    parts = (part for reason in report.skips(convention) for part in reason.split("; "))
    return "; ".join(dict.fromkeys(re.sub(r": asked .*, offered ", ": offered ", part) for part in parts))


def _print_failures(report: Report, convention: str, count: int) -> None:
    """Of a convention's failures the smallest; all of them are in the JSON document."""
    from ...plugins.conformance import CONVENTIONS

    failure = min((f for f in report.failures if f.convention == convention), key=lambda f: len(f.problem))
    print(f"\n{convention}: {CONVENTIONS[convention]}")
    print(f"  {failure.case}{f' and {count - 1} more' if count > 1 else ''}")
    print(f"  {failure.reason}")
    if failure.problem:
        print(f"  problem: {failure.problem}")
    print(f"  repeat:  {report.repeat(failure)}")


def _verdict(report: Report) -> str:
    counts = report.counts().values()
    passed, skipped, failed = (sum(getattr(c, name) for c in counts) for name in ("passed", "skipped", "failed"))
    numbers = f"{passed} passed, {skipped} skipped, {failed} failed in {report.seconds:.1f} s"
    if report.conforms:
        return f"{report.backend} conforms: {numbers}"
    given_up = f", {report.unrun} given up after too many crashes" if report.unrun else ""
    reason = "" if failed else " (no case could be run)"
    return f"{report.backend} does not conform{reason}: {numbers}{given_up}"
