"""`headstock replay`: the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from ...core.errors import BackendError, InvalidInput
from ...entrypoints.cli import options

if TYPE_CHECKING:
    from ...core.live import Recording
    from .run import Replayed

EXIT_WRONG = 1


def replay(
    file: Annotated[str, Argument(metavar="FILE", help="From generate or serve --record-attention.")],
    attention_backend: Annotated[
        str | None,
        Option(
            help="The backend that computes; else the first of the automatic order.",
            metavar="NAME",
            rich_help_panel=options.CHOICE,
        ),
    ] = None,
    attention_backend_config: Annotated[
        str | None,
        Option(help="Options of backends, an object by name.", metavar="JSON|FILE", rich_help_panel=options.CHOICE),
    ] = None,
    aiter_ops: options.AiterOps = None,
    limit: Annotated[int | None, Option(min=1, help="At most so many steps, spread evenly.")] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Compute the attention of a recording again, and check it.

    Every step is laid out anew, with its rows and lengths, over the recorded
    vectors where they were kept, else over random ones. Of each row the first
    and the last query are held against the float64 reference.

    Exit codes: 0 all right; 1 a step is wrong, failed, or does not fit the backend; 2 refused.
    """
    from ...entrypoints.cli.console import note, print_json, show_log

    show_log(verbose)
    from ...core.live import read_recording
    from ...entrypoints.compose import installed_plugins
    from ...selector import Selector, find_device, read_policy
    from ...selector.called import require
    from ...selector.ranking import ranked
    from ..kernels.run import fitting_block_size
    from ..progress import progress
    from .run import BLOCK_SIZE
    from .run import replay as run
    from .shapes import spread

    recording = read_recording(file)
    if not recording.steps:
        raise InvalidInput("recording", f"{file} holds no step")
    plugins = installed_plugins()
    device = find_device("cpu", plugins.hooks)
    policy = read_policy(attention_backend_config=attention_backend_config, aiter_ops=aiter_ops)
    judge = Selector(plugins, policy).judge(device)
    runs_here = [o for o in ranked(device, plugins) if not judge.standing(o)[0]]
    offer = runs_here[0] if attention_backend is None else plugins.backends.find(attention_backend)
    if against := judge.standing(offer)[0]:
        raise BackendError("\n  ".join([f'backend "{offer.label}" cannot run here:', *against]))
    judge.options(offer)  # wrong ones are told of before anything is computed
    kept = replace(recording, steps=spread(recording.steps, limit))
    size = fitting_block_size(BLOCK_SIZE, judge.standing(offer)[1])
    specs = dict.fromkeys(replace(g.spec, block_size=size) for step in kept.steps for g in step.groups)
    require(judge, [(offer, spec) for spec in specs])
    with progress("replaying", sum(len(step.groups) for step in kept.steps)) as bar:
        found = list(bar.each("replaying", run(kept, offer, judge, plugins.guard)))
    if recording.cut_short:
        note(f"{file} ends inside a step: what was written before is replayed")
    if json:
        print_json(_document(file, offer.label, recording, found))
    else:
        _print(offer.label, found)
    if not found or any(one.verdict != "right" for one in found):
        raise Exit(EXIT_WRONG)


def _document(file: str, backend: str, recording: Recording, found: Sequence[Replayed]) -> dict[str, Any]:
    return {
        "file": file,
        "backend": backend,
        "recorded_by": f"headstock {recording.headstock}",
        "cut_short": recording.cut_short,
        "right": bool(found) and all(one.verdict == "right" for one in found),
        "steps": [asdict(one) for one in found],
    }


def _print(backend: str, found: Sequence[Replayed]) -> None:
    bad = [one for one in found if one.verdict != "right"]
    for one in bad[:10]:
        print(f"{one.label}: {one.verdict}: {one.reason}")
    if len(bad) > 10:
        print(f"and {len(bad) - 10} more")
    counts = Counter(one.verdict for one in found)
    print(
        f"{backend}: " + (", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing to replay")
    )
    errors = [one.error for one in found if one.error is not None]
    times = [one.microseconds for one in found if one.microseconds is not None]
    if errors and times:
        print(f"largest error {max(errors):.1e}; median time of a step and layer {median(times):.0f} us")
