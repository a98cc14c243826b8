"""`headstock trace`: the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from typer import Argument, Exit, Option

from ...core.errors import InvalidInput
from ...entrypoints.cli import options

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
EXIT_INCOMPLETE = 1

app = typer.Typer(add_completion=False, no_args_is_help=True, context_settings=HELP_OPTIONS)


@app.callback()
def trace() -> None:
    """Carry recordings to FlashInfer-Trace, the data sets of flashinfer-bench, and back.

    A recording comes from generate or serve with --record-attention. A data
    set holds definitions of attention, workloads, solutions and their traces.
    """


@app.command(context_settings=HELP_OPTIONS)
def export(
    recording: Annotated[str, Argument(metavar="RECORDING", help="From generate or serve --record-attention.")],
    folder: Annotated[str, Argument(metavar="FOLDER", help="The data set: a new folder, or an empty one.")],
    attention_backend: Annotated[
        str | None,
        Option(
            help="Also write this backend as a solution, and what comes of it on each workload as traces.",
            metavar="NAME",
            rich_help_panel=options.CHOICE,
        ),
    ] = None,
    attention_backend_config: Annotated[
        str | None,
        Option(help="Options of backends, an object by name.", metavar="JSON|FILE", rich_help_panel=options.CHOICE),
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="At most so many steps, spread evenly.")] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a recording as a data set of FlashInfer-Trace.

    Each step of each attention group becomes a workload, with the recorded
    vectors where they were kept, else with random ones. A definition has a
    reference that computes it: window and softcap included. Layers that no
    definition can say, as those with sinks, are left out and listed.

    Exit codes: 0 all is written; 1 layers are left out, or the backend is wrong; 2 refused.
    """
    from ...entrypoints.cli.console import show_log

    show_log(verbose)
    from ...core.live import read_recording
    from ..progress import progress
    from ..replay.shapes import spread
    from .export import forms_of, left_out, new_folder, write_dataset
    from .showing import show_exported
    from .solver import find_solver

    whole = read_recording(recording)
    kept = replace(whole, steps=spread(whole.steps, limit))
    forms, without = forms_of(kept), left_out(kept)
    if not forms:
        lines = [f"{recording} holds no step that can be exported", *map(str, without)]
        raise InvalidInput("recording", "\n  ".join(lines))
    solver = None
    if attention_backend is not None:
        solver = find_solver(forms, attention_backend, attention_backend_config)
    with new_folder(folder) as root, progress("exporting", sum(len(s.groups) for s in kept.steps)) as bar:
        done = list(bar.each("exporting", write_dataset(root, kept, solver)))
    show_exported(recording, folder, whole, done, without, solver, json=json)
    if without or any(one.evaluation is not None and not one.evaluation.right for one in done):
        raise Exit(EXIT_INCOMPLETE)


@app.command("import", context_settings=HELP_OPTIONS)
def import_dataset(
    dataset: Annotated[str, Argument(metavar="FOLDER", help="A data set: definitions, workloads and blobs.")],
    recording: Annotated[str, Argument(metavar="RECORDING", help="The file to write; it must not be there.")],
    definition: Annotated[
        str, Option(help="Only workloads of this definition, or of those of a pattern.", metavar="NAME")
    ] = "*",
    limit: Annotated[int | None, Option(min=1, help="At most so many workloads, spread evenly.")] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a recording of a data set's attention workloads.

    headstock replay and headstock ab --trace take it. Definitions named
    gqa_paged_decode_…, gqa_paged_prefill_causal_… and
    gqa_ragged_prefill_causal_… are read, by the conventions of their names,
    and nothing of a data set is executed. Where queries, keys and values are
    all in files, the recording holds them.

    Exit codes: 0 all is written; 1 attention workloads are left out; 2 refused.
    """
    from ...entrypoints.cli.console import show_log

    show_log(verbose)
    from ..progress import progress
    from ..replay.shapes import spread
    from .dataset import read_dataset
    from .importing import read_steps, write
    from .showing import show_imported, skipped_lines

    contents = read_dataset(dataset, definition)
    steps = spread(read_steps(contents), limit)
    if not steps:
        lines = [f"{dataset} holds no attention workload that can be imported", *skipped_lines(contents)]
        raise InvalidInput("dataset", "\n  ".join(lines))
    with progress("importing", len(steps)) as bar:
        write(bar.each("importing", steps), recording)
    show_imported(dataset, recording, steps, contents, json=json)
    if contents.skipped:
        raise Exit(EXIT_INCOMPLETE)
