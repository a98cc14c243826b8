"""`headstock tune`: the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from ...core.errors import BackendError, InvalidInput
from ...entrypoints.cli import options

if TYPE_CHECKING:
    from ...core.attention import AttentionSpec, Device
    from ...plugins import Offer, Plugins
    from ...selector.judge import Judge
    from ...selector.tuned_file import TunedEntry
    from ..kernels.report import Row
    from .run import TuneRun

EXIT_NOTHING = 1


def tune(
    model: Annotated[
        str, Argument(metavar="MODEL", help="smollm2, a Hugging Face folder, a .gguf file or a Hub name.")
    ] = "smollm2",
    backends: Annotated[
        str | None, Option(help="Which, commas between; else all that are chosen automatically here.", metavar="NAMES")
    ] = None,
    device: Annotated[
        str | None, Option(help="A device here, such as cpu or cuda:1; else the best.", metavar="NAME")
    ] = None,
    dtype: Annotated[str, Option(help="Compute dtype, or auto.")] = "auto",
    batches: Annotated[str, Option(help="Sequences of a decode, commas between.", metavar="NUMBERS")] = "1,16",
    contexts: Annotated[str, Option(help="Tokens of context, commas between.", metavar="NUMBERS")] = "512,2048",
    rounds: Annotated[int, Option(min=6, help="Turns of each backend a shape.")] = 16,
    output: Annotated[
        str | None, Option("--output", "-o", help="The file; else HEADSTOCK_TUNED, or one in your data folder.")
    ] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure the backends of this machine for MODEL's layers, so that the fastest right one is chosen.

    Every output is held against the float64 reference before its time counts.
    A backend that offers configurations of itself, as triton does, gets the
    fastest of them first. The winner of each phase, over all batches and
    contexts, goes into a file that the selector reads from then on: a backend
    that is named by you still goes first. A file of another machine or version
    is not used.

    Exit codes: 0 measured and written; 1 no backend could be measured; 2
    refused; 130 interrupted, with what was finished by then in the file.
    """
    from ...entrypoints.cli.console import note, print_json, show_log

    show_log(verbose)
    from ...core.model import read_config, resolve_dtype, resolve_model
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector
    from .measure import Regimes, measurable

    regimes = Regimes(batches=_numbers("batches", batches), contexts=_numbers("contexts", contexts))
    path = _path(output)
    plugins = installed_plugins()
    target = _device(device, plugins)
    selector = Selector(plugins)
    judge = selector.judge(target)
    offers, left_out = _offers(backends, selector, judge)
    config = read_config(resolve_model(model, weights=False).path)
    specs, others = measurable(config.attention_specs(resolve_dtype(dtype, config, target)).values())
    for spec in others:
        note(f"layers with heads of {spec.head_size} and {spec.head_size_v} channels are not measured")
    runs = _runs(specs, regimes, rounds, (offers, left_out), judge, plugins)
    entries = list(_measured(runs, path, target))
    _tell(runs)
    if not entries:
        raise _nothing([row for run in runs for row in run.rows])
    note(f"written to {path}")
    if json:
        print_json(_document(model, target, entries, path))
    else:
        _print(entries)


def _device(name: str | None, plugins: Plugins) -> Device:
    """Where it is measured; raises `InvalidInput` where that is not possible."""
    from ...selector import find_device

    found = find_device(name, plugins.hooks, profiles=False)
    if found.platform not in ("cpu", "cuda", "rocm"):
        raise InvalidInput("device", f"there is no clock for {found.platform}; it is cpu, cuda or rocm")
    return found


def _numbers(name: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    numbers = [
        int(w.removesuffix("k")) * (1024 if w.endswith("k") else 1) for w in words if w.removesuffix("k").isdigit()
    ]
    if len(numbers) < len(words) or not all(1 <= n <= 2**20 for n in numbers):
        raise InvalidInput(name, f"{text!r} is not a list of numbers from 1 to 1024k, such as 512,2k")
    return tuple(dict.fromkeys(numbers))


def _path(output: str | None) -> Path:
    """Raises `InvalidInput` before minutes of work whose result could not be written."""
    from ...entrypoints.cli.console import check_writable
    from ...plugins.environment import TUNED, read, truth
    from ...selector.tuned_file import default_path

    asked = output or read(TUNED)
    path = Path(os.path.expanduser(asked)) if asked and truth(asked) is not False else default_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("output", f"{path} cannot be written: {error.strerror}") from error
    check_writable("output", str(path))
    return path


def _offers(words: str | None, selector: Any, judge: Judge) -> tuple[list[Offer], list[Offer]]:
    """Those to be measured, in the order of the ranking: of the automatic order that run here, or those asked for. And
    those of the automatic order that run here, too."""
    from ...selector.ranking import LAST_RESORT, ranked

    ranking = ranked(judge.device, selector.plugins)
    here = [offer for offer in ranking if offer.label not in LAST_RESORT and not judge.standing(offer)[0]]
    found = here
    if words is not None:
        asked = {selector.plugins.backends.find(word.strip()): None for word in words.split(",")}
        found = [offer for offer in selector.offers(ranking) if offer in asked]
        for offer in found:
            if reasons := judge.standing(offer)[0]:
                raise BackendError("\n  ".join([f'backend "{offer.label}" cannot be measured here:', *reasons]))
    return found, [offer for offer in here if offer not in found]


def _runs(
    specs: Sequence[AttentionSpec],
    regimes: Any,
    rounds: int,
    offers: tuple[list[Offer], list[Offer]],
    judge: Judge,
    plugins: Plugins,
) -> list[TuneRun]:
    """One for each kind of layer; raises `InvalidInput` where there is nothing to choose from."""
    import torch

    from .run import Contest, TuneRun

    found, left_out = offers
    contest = Contest(offers=found, left_out=left_out, regimes=regimes, rounds=rounds, threads=torch.get_num_threads())
    runs = [TuneRun(spec, contest, judge, plugins.guard) for spec in specs]
    if len(found) < 2 and all(run.choices < 2 for run in runs):
        names = ", ".join(offer.label for offer in found) or "none"
        raise InvalidInput("backends", f"there is nothing to choose from: {names}")
    return runs


def _measured(runs: Sequence[TuneRun], path: Path, device: Device) -> Iterator[TunedEntry]:
    """With a bar on stderr. What is finished is written at once."""
    from ...selector.tuned_file import fingerprint, write_tuned
    from ..progress import progress

    with progress("measuring", sum(run.steps for run in runs)) as bar:
        for run in runs:
            for _ in bar.each("measuring", run.measure()):
                pass
            entries = run.entries()
            if entries:
                write_tuned(path, fingerprint(device), entries)
            yield from entries


def _tell(runs: Sequence[TuneRun]) -> None:
    """What lessens the trust in the choice, and what was dropped."""
    from ...entrypoints.cli.console import note
    from ..ab.lines import LOADED

    rows = [row for run in runs for row in run.rows]
    loaded = [load for row in rows if (load := row.other_load or 0.0) > LOADED]
    if loaded:
        note(f"others kept up to {max(loaded):.1f} CPUs busy: measure again on a quiet machine")
    for run in runs:
        for name, reason in run.dropped().items():
            note(f"{name} was dropped: {reason}")


def _nothing(rows: Sequence[Row]) -> Exit:
    from ...entrypoints.cli.console import note

    reasons = dict.fromkeys(f"{m.name}: {m.reason}" for row in rows for m in row.measurements if m.reason)
    reasons |= dict.fromkeys(row.skipped for row in rows if row.skipped)
    note("\n  ".join(["headstock: no backend could be measured", *reasons]))
    return Exit(EXIT_NOTHING)


def _document(model: str, device: Device, entries: Sequence[TunedEntry], path: Path) -> dict[str, Any]:
    from ...selector.tuned_file import fingerprint

    own = [entry.to_dict() for entry in entries]
    return {"model": model, "file": str(path), "fingerprint": fingerprint(device), "entries": own}


def _print(entries: Sequence[TunedEntry]) -> None:
    from ...entrypoints.cli.console import print_table

    rows = [
        (
            f"{e.spec.num_heads}/{e.spec.num_kv_heads}/{e.spec.head_size} {e.spec.dtype}"
            + (f", window {e.spec.window[0] + 1}" if e.spec.window else ""),
            e.phase,
            e.backend,
            f"{e.ratio:.2f} [{e.low:.2f}, {e.high:.2f}] times as fast as {e.against}"
            if e.backend != e.against
            else "nothing else is shown to be faster",
        )
        for e in entries
    ]
    print_table(("layers", "phase", "backend", "because"), rows)
