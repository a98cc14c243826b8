"""`headstock tune`: the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from ...core.errors import BackendError, InvalidInput
from ...entrypoints.cli import options

if TYPE_CHECKING:
    from ...core.attention import AttentionSpec, Device
    from ...plugins import Offer
    from ...selector.judge import Judge
    from ...selector.tuned_file import TunedEntry
    from ..kernels.report import Row
    from .measure import Regimes

EXIT_NOTHING = 1


def tune(
    model: Annotated[
        str, Argument(metavar="MODEL", help="smollm2, a Hugging Face folder, a .gguf file or a Hub name.")
    ] = "smollm2",
    backends: Annotated[
        str | None, Option(help="Which, commas between; else all that are chosen automatically here.", metavar="NAMES")
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
    The winner of each phase, over all batches and contexts, goes into a file
    that the selector reads from then on: a backend that is named by you still
    goes first. A file of another machine or version is not used.

    Exit codes: 0 measured and written; 1 no backend could be measured; 2 refused.
    """
    from ...entrypoints.cli.console import note, print_json, show_log

    show_log(verbose)
    from ...core.model import read_config, resolve_dtype, resolve_model
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector, find_device
    from ...selector.tuned_file import fingerprint, write_tuned
    from .measure import Regimes, measurable

    regimes = Regimes(batches=_numbers("batches", batches), contexts=_numbers("contexts", contexts))
    path = _path(output)
    plugins = installed_plugins()
    device = find_device("cpu", plugins.hooks)
    selector = Selector(plugins)
    judge = selector.judge(device)
    offers, left_out = _offers(backends, selector, judge)
    config = read_config(resolve_model(model, weights=False).path)
    specs, others = measurable(config.attention_specs(resolve_dtype(dtype, config, device)).values())
    for spec in others:
        note(f"layers with heads of {spec.head_size} and {spec.head_size_v} channels are not measured")
    rows, entries = _measured(specs, regimes, rounds, offers, left_out, judge, plugins.guard)
    if not entries:
        raise _nothing(rows)
    write_tuned(path, fingerprint(device), entries)
    note(f"written to {path}")
    if json:
        print_json(_document(model, device, entries, path))
    else:
        _print(entries)


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
    path = Path(asked).expanduser() if asked and truth(asked) is not False else default_path()
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
    if len(found) < 2:
        names = ", ".join(offer.label for offer in found) or "none"
        raise InvalidInput("backends", f"there is nothing to choose from: {names}")
    return found, [offer for offer in here if offer not in found]


def _measured(
    specs: Sequence[AttentionSpec],
    regimes: Regimes,
    rounds: int,
    offers: Sequence[Offer],
    left_out: Sequence[Offer],
    judge: Judge,
    guard: Any,
) -> tuple[list[Row], list[TunedEntry]]:
    """With a bar on stderr."""
    import torch

    from ..progress import progress
    from .measure import entries_for, rows_for, settings_for

    every: list[Row] = []
    entries: list[TunedEntry] = []
    with progress("measuring", len(specs) * len(regimes.shapes(specs[0])) if specs else 0) as bar:
        for spec in specs:
            settings = settings_for(spec, regimes, rounds, torch.get_num_threads())
            rows = list(bar.each("measuring", rows_for(settings, offers, judge, guard)))
            every += rows
            entries += entries_for(spec, rows, offers, left_out)
    return every, entries


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
