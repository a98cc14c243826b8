"""From a recording to a folder of FlashInfer-Trace: definitions, workloads, and a backend as their solution."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from ...core.errors import InvalidInput
from ...core.live import Recording
from .definitions import definition
from .evaluation import Evaluated
from .forms import Form, form_of, inexpressible
from .solution import solution, solution_name
from .solver import Solver
from .workloads import Workload, step_workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Layers whose attention no definition can say."""

    layers: tuple[str, ...]
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        first, *others = self.layers
        more = f" and {len(others)} more layers" if others else ""
        return f"{first}{more}: {'; '.join(self.reasons)}"


def left_out(recording: Recording) -> tuple[LeftOut, ...]:
    """Layers that are not exported, each with all reasons."""
    groups = {group for step in recording.steps for group in step.groups}
    found = {group.layers: reasons for group in groups if (reasons := inexpressible(group.spec))}
    return tuple(LeftOut(layers=layers, reasons=reasons) for layers, reasons in sorted(found.items()))


def forms_of(recording: Recording) -> tuple[tuple[Form, float], ...]:
    """What `workloads_of` gives definitions of, and with which softmax scales."""
    found = {
        (form_of(group.spec, rows), group.spec.scale): None
        for step in recording.steps
        for group in step.groups
        if (rows := step.rows(group.kv_group)) and not inexpressible(group.spec)
    }
    return tuple(found)


def workloads_of(recording: Recording) -> Iterator[Workload]:
    """Those that differ, in the order of the steps."""
    seen: set[str] = set()
    for step in recording.steps:
        groups = frozenset(index for index, group in enumerate(step.groups) if not inexpressible(group.spec))
        for workload in step_workloads(step, groups):
            if workload.uuid not in seen:
                seen.add(workload.uuid)
                yield workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A workload that was written."""

    definition: str
    workload: str
    """Its uuid."""
    step: int
    group: int
    vectors: str
    """``"recorded"`` or ``"random"``."""
    evaluation: Evaluated | None = None
    """Of the solution, where there is one."""


def write_dataset(root: Path, recording: Recording, solver: Solver | None) -> Iterator[Exported]:
    """Write it, workload after workload, each with what comes of the solution."""
    dataset = Dataset(root)
    for workload in workloads_of(recording):
        dataset.add(workload)
        result = None
        if solver is not None:
            result = solver.evaluate(workload)
            dataset.trace(workload, solver, result)
        yield Exported(
            definition=workload.form.name,
            workload=workload.uuid,
            step=workload.step,
            group=workload.group,
            vectors="recorded" if "q" in workload.tensors else "random",
            evaluation=result,
        )
    if solver is not None:
        dataset.solve(solver)


class Dataset:
    """A folder of FlashInfer-Trace that is being written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._forms: dict[str, Form] = {}

    def add(self, workload: Workload) -> None:
        """A workload, with its definition where that is new."""
        form = workload.form
        if form.name not in self._forms:
            self._forms[form.name] = form
            self._write(f"definitions/{form.op_type}/{form.name}.json", definition(form))
        blob = self._blob(workload)
        path = self._root / blob
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in workload.tensors.items()}, path)
        self._append(f"workloads/{form.op_type}/{form.name}.jsonl", workload.document(blob))

    def solve(self, solver: Solver) -> None:
        """A backend as the solution of every definition."""
        for form in self._forms.values():
            document = solution(form, solver.backend, solver.options)
            self._write(f"solutions/{form.op_type}/{form.name}/{document['name']}.json", document)

    def trace(self, workload: Workload, solver: Solver, result: Evaluated) -> None:
        """What came of the solution on a workload."""
        form = workload.form
        document = workload.document(self._blob(workload))
        document["solution"] = solution_name(form, solver.backend)
        document["evaluation"] = result.document(solver.hardware, solver.libraries)
        self._append(f"traces/{form.op_type}/{form.name}.jsonl", document)

    def _blob(self, workload: Workload) -> str:
        name = workload.form.name
        return f"blob/workloads/{workload.form.op_type}/{name}/{name}_{workload.uuid}.safetensors"

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def _append(self, name: str, document: Mapping[str, Any]) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """A folder that is there, whole, if the body ends well, and not at all otherwise.

    Raises `InvalidInput` where it is there already and holds anything, or cannot be written.
    """
    target = Path(os.path.expanduser(name)).absolute()
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InvalidInput("folder", f"{name} is there already; name a new folder, or an empty one")
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            yield made
            target.mkdir(mode=0o700, exist_ok=True)  # what is there may be somebody's working directory: it stays
            for part in made.iterdir():
                part.rename(target / part.name)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidInput("folder", f"{name} cannot be written: {reason}") from error
