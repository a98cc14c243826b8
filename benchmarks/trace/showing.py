"""What came of an export or an import, at the terminal and as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from ...core.live import Recording
from ...entrypoints.cli.console import note, print_json
from .dataset import Contents
from .export import Exported, LeftOut
from .importing import Step
from .solver import Solver

MOST_LINES = 10


def show_exported(
    recording: str,
    folder: str,
    recorded: Recording,
    done: Sequence[Exported],
    without: Sequence[LeftOut],
    solver: Solver | None,
    *,
    json: bool,
) -> None:
    """Notes go to stderr."""
    if recorded.cut_short:
        note(f"{recording} ends inside a step: what was written before is exported")
    for group in without:
        note(f"left out: {group}")
    if json:
        print_json(
            {
                "recording": recording,
                "folder": folder,
                "recorded_by": f"headstock {recorded.headstock}",
                "cut_short": recorded.cut_short,
                "definitions": list(dict.fromkeys(one.definition for one in done)),
                "solution": None if solver is None else solver.backend,
                "workloads": [_exported(one) for one in done],
                "left_out": [asdict(group) for group in without],
            }
        )
        return
    for name, count in Counter(one.definition for one in done).items():
        print(f"{name}: {_counted(count, 'workload')}")
    if solver is not None:
        _print_evaluations(solver, done)


def _exported(one: Exported) -> dict[str, Any]:
    """Errors that are not finite are null: JSON has no word for them."""
    found = asdict(one)
    if one.evaluation is not None:
        found["evaluation"] |= {
            name: value if isfinite(value) else None
            for name, value in (("absolute", one.evaluation.absolute), ("relative", one.evaluation.relative))
        }
    return found


def _print_evaluations(solver: Solver, done: Sequence[Exported]) -> None:
    results = [(one, one.evaluation) for one in done if one.evaluation is not None]
    bad = [(one, result) for one, result in results if not result.right]
    for one, result in bad[:MOST_LINES]:
        print(f"step {one.step}, {one.definition}: {result.status}: {result.reason}")
    if len(bad) > MOST_LINES:
        print(f"and {len(bad) - MOST_LINES} more")
    counts = Counter(result.status for _, result in results)
    print(f"{solver.backend}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))


def show_imported(dataset: str, recording: str, steps: Sequence[Step], contents: Contents, *, json: bool) -> None:
    """Notes go to stderr."""
    for line in skipped_lines(contents):
        note(f"left out: {line}")
    if contents.others:
        note(f"not attention: {', '.join(contents.others)}")
    if json:
        print_json(
            {
                "dataset": dataset,
                "recording": recording,
                "steps": [_step(number, step) for number, step in enumerate(steps, 1)],
                "left_out": [asdict(one) for one in contents.skipped],
                "not_attention": contents.others,
            }
        )
        return
    for name, count in Counter(step.source.form.name for step in steps).items():
        print(f"{name}: {_counted(count, 'workload')}")
    print(
        f"{recording}: {_counted(len(steps), 'step')}, {sum(step.has_vectors for step in steps)} of them with vectors"
    )


def skipped_lines(contents: Contents) -> list[str]:
    """What cannot be imported: those with the same reasons in one line, and not more than a few."""
    alike = Counter((one.definition, one.reasons) for one in contents.skipped)
    lines = [
        f"{name} ({_counted(count, 'workload')}): {'; '.join(reasons)}"
        if count > 1
        else f"{name}: {'; '.join(reasons)}"
        for (name, reasons), count in alike.items()
    ]
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return lines[:MOST_LINES] + more


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _step(number: int, step: Step) -> dict[str, Any]:
    return {
        "step": number,
        "definition": step.source.form.name,
        "workload": step.source.binding.uuid,
        "rows": len(step.rows),
        "vectors": "recorded" if step.has_vectors else "random",
    }
