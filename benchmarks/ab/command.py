"""`headstock ab`: the command line."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from ...core.errors import InvalidInput

if TYPE_CHECKING:
    from ..kernels.report import Row
    from ..kernels.run import Settings
    from .arms import Arm
    from .report import AbReport

EXIT_GATE = 1


def ab(
    arms: Annotated[
        list[str], Argument(metavar="ARM...", help="NAME[{options}][@ENV], the baseline first. See below.")
    ],
    shapes: Annotated[
        str | None,
        Option(help="Labels such as decode:9/3/64:16x4k, or patterns such as 'decode:9/*'.", metavar="SHAPES"),
    ] = None,
    phase: Annotated[str, Option(help="decode, prefill, chunk or all.")] = "all",
    dtype: Annotated[str, Option(help="Of queries, keys and values; commas between.")] = "float32",
    threads: Annotated[int, Option(min=1, help="Threads of each arm.")] = 1,
    block_size: Annotated[int, Option(min=1, help="Tokens a KV block, where an arm takes it.")] = 16,
    rounds: Annotated[int | None, Option(min=6, help="Pairs of measurements a shape (30).", show_default=False)] = None,
    no_check: Annotated[
        bool, Option("--no-check", help="Leave out the conformance kit, which judges every arm first, some 10 s each.")
    ] = False,
    fail_if_slower: Annotated[
        float | None,
        Option(help="Exit code 1 if an arm is shown to be slower than this share of the baseline.", metavar="SHARE"),
    ] = None,
    fail_if_wrong: Annotated[bool, Option("--fail-if-wrong", help="Exit code 1 if an arm is wrong.")] = False,
    html: Annotated[str | None, Option(help="Also write one HTML file that needs no network.", metavar="FILE")] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print a summary for a pull request.")] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON document to stdout.")] = False,
    save: Annotated[bool, Option("--save", help="Keep the result; see headstock results.")] = False,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show the log, on stderr.")] = False,
) -> None:
    """Hold kernels against each other, and say what the measurements carry.

    An ARM is a backend, with options in JSON where wanted, in this environment
    or in that of another Python: cpu, 'cpu{}', sdpa, 'triton{"num_warps": 8}',
    fast@/venvs/new. Every arm runs in a process of its own.

    Numerics come first: an arm that breaks a convention, or whose output is
    wrong, gets no verdict on speed.

    Exit codes: 0 compared; 1 a gate of --fail-if-* has closed; 2 refused.
    """
    from ...entrypoints.cli.console import show_log

    show_log(verbose)
    from ..results.saving import keep, stored
    from .arms import read_arms
    from .showing import show

    _gate(fail_if_slower)
    _writable("html", html)
    wanted = read_arms(arms)
    settings = _settings(shapes, phase, dtype, threads, block_size, rounds)
    store = stored(save)
    report = _compare(wanted, settings, check=not no_check)
    show(report, html=html, markdown=markdown, json=json)
    keep(store, report.to_dict())
    closed = fail_if_slower is not None and bool(report.slower_than(fail_if_slower))
    if closed or (fail_if_wrong and report.wrong):
        raise Exit(EXIT_GATE)


def _gate(share: float | None) -> None:
    if share is not None and not 0 < share < 10:
        raise InvalidInput("fail_if_slower", f"must be a share of the baseline's speed such as 0.98, not {share:g}")


def _writable(name: str, file: str | None) -> None:
    """Raise `InvalidInput` before minutes of work whose result could not be written."""
    if file is not None and (Path(file).is_dir() or not os.access(Path(file).absolute().parent, os.W_OK)):
        raise InvalidInput(name, f"{file} cannot be written")


def _settings(
    shapes: str | None, phase: str, dtype: str, threads: int, block_size: int, rounds: int | None
) -> Settings:
    from ...core.attention import DTYPE_FORMATS
    from ..kernels.run import Settings
    from ..kernels.shapes import choose, default_grid, quick_grid
    from .kernel_level import UNBOUNDED
    from .verdicts import ROUNDS

    dtypes = tuple(dict.fromkeys(word.strip() for word in dtype.split(",")))
    for name in dtypes:
        if name not in DTYPE_FORMATS:
            raise InvalidInput("dtype", f"{name!r} is not one of {', '.join(DTYPE_FORMATS)}")
    if threads > (os.cpu_count() or 1):
        raise InvalidInput("threads", f"must be at most {os.cpu_count()}, the CPUs there are, not {threads}")
    return Settings(
        shapes=choose(shapes, phase, default_grid() if shapes else quick_grid()),
        dtypes=dtypes,
        threads=(threads,),
        rounds=rounds or ROUNDS,
        budget=UNBOUNDED,
        block_size=block_size,
        overheads=False,
    )


def _compare(arms: Sequence[Arm], settings: Settings, *, check: bool) -> AbReport:
    """Check, measure, judge; a bar on stderr meanwhile."""
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector, find_device
    from ..machine import describe
    from .kernel_level import about, check_arm, measure, start_arms
    from .kernel_lines import kernel_comparison, kernel_line, notes_on, with_problems
    from .report import AbReport
    from .showing import progress

    plugins = installed_plugins()
    device = find_device("cpu", plugins.hooks)
    judge = Selector(plugins).judge(device)
    machine, start = describe(device), perf_counter()
    steps = len(settings.tasks()) + (len(arms) if check else 0)
    with ExitStack() as stack:
        bar = stack.enter_context(progress(steps))
        peers = start_arms(stack, arms, settings.block_size)
        against = [bar.during(f"checking {arm.label}", lambda arm=arm: check_arm(arm)) if check else "" for arm in arms]
        found = [about(arm, peer, problem) for arm, peer, problem in zip(arms, peers, against, strict=True)]
        sound = [peer for peer, arm in zip(peers, found, strict=True) if not arm.problems]
        rows: list[Row] = []
        if len(sound) > 1:
            rows += bar.each("measuring", measure(settings, sound, judge, plugins.guard))
    reports = with_problems(found, rows)
    baseline, others = reports[0], reports[1:]
    lines = tuple(kernel_line(row, baseline.label, [arm.label for arm in others]) for row in rows)
    return AbReport(
        level="kernel",
        command=shlex.join(["headstock", *sys.argv[1:]]),
        machine=machine,
        seconds=perf_counter() - start,
        rounds=settings.rounds,
        arms=reports,
        lines=lines,
        comparisons=tuple(kernel_comparison(arm, baseline, rows) for arm in others),
        notes=notes_on(lines, rows),
    )
