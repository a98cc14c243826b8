"""`Workload`: one step's attention over a definition's inputs, made from a recording."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...core.attention.batch import host_ints
from ...core.errors import InvalidInput
from ...core.live import RecordedStep, RecordedTensors
from .definitions import axes_of, input_names
from .forms import Form, form_of

Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A definition's axes and inputs."""

    form: Form
    scale: float
    """The softmax scale."""
    step: int
    """Number of the step, as it was recorded."""
    group: int
    """Attention group in the step."""
    num_pages: int = 0
    """Pages that the cache has at least; 0 without pages."""
    tensors: Mapping[str, Tensor]
    """Inputs by name, on the CPU: offsets and pages, int32, always; queries, keys and values where they were recorded,
    else they are random."""

    @cached_property
    def uuid(self) -> str:
        """From all that is in it: equal workloads have one id."""
        digest = hashlib.sha256(f"{self.form.name} {self.scale!r} {self.num_pages}".encode())
        for name in sorted(self.tensors):
            digest.update(name.encode())
            digest.update(self.tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return str(uuid.UUID(bytes=digest.digest()[:16]))

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the definition's variable axes."""
        first = self.tensors["kv_indptr"]
        sizes = {
            "batch_size": len(first) - 1,
            "len_indptr": len(first),
            "num_pages": self.num_pages,
            "num_kv_indices" if self.form.paged else "total_kv": int(first[-1]),
        }
        if "qo_indptr" in self.tensors:
            sizes["total_q"] = int(self.tensors["qo_indptr"][-1])
        return {axis: sizes[axis] for axis, about in axes_of(self.form).items() if about["type"] == "var"}

    def document(self, blob: str) -> dict[str, Any]:
        """As the schema has it: a trace without solution. `blob` is the path of the file with `tensors`."""
        inputs: dict[str, Any] = {
            name: {"type": "safetensors", "path": blob, "tensor_key": name}
            if name in self.tensors
            else {"type": "random"}
            for name in input_names(self.form)
        }
        inputs["sm_scale"] = {"type": "scalar", "value": self.scale}
        workload = {"uuid": self.uuid, "axes": self.axes, "inputs": inputs}
        return {"definition": self.form.name, "workload": workload, "solution": None, "evaluation": None}


def step_workloads(step: RecordedStep, groups: frozenset[int]) -> Iterator[Workload]:
    """One for each of these attention groups of a step. Raises `InvalidInput` where the step says not which blocks."""
    recorded = {tensors.group: tensors for tensors in step.tensors}
    for index in sorted(groups):
        group = step.groups[index]
        rows = step.rows(group.kv_group)
        if not rows:
            continue
        form, kept = form_of(group.spec, rows), recorded.get(index)
        num_pages, tensors = 0, _ragged(rows, kept)
        if form.paged:
            num_pages, tensors = _paged(rows, _table(step, index, rows), form, kept)
        yield Workload(
            form=form, scale=group.spec.scale, step=step.number, group=index, num_pages=num_pages, tensors=tensors
        )


def _table(step: RecordedStep, index: int, rows: Rows) -> Tensor:
    """int32 (R, width): the blocks of each row."""
    group = step.groups[index]
    table = step.block_tables[group.kv_group]
    width = -(-max(keys for _, keys in rows) // group.spec.block_size)
    if table is None or table.ndim != 2 or table.shape[0] != len(rows) or table.shape[1] < width:
        raise InvalidInput("recording", f"step {step.number} does not say in which blocks the keys of its rows are")
    return table


def _ragged(rows: Rows, kept: RecordedTensors | None) -> dict[str, Tensor]:
    tensors = {"qo_indptr": _offsets(new for new, _ in rows), "kv_indptr": _offsets(keys for _, keys in rows)}
    return tensors if kept is None else {**tensors, "q": kept.query, "k": kept.key, "v": kept.value}


def _paged(rows: Rows, table: Tensor, form: Form, kept: RecordedTensors | None) -> tuple[int, dict[str, Tensor]]:
    """Number of pages, and tensors. Pages are the blocks that a row has, numbered anew in the order of their ids."""
    size, keys = form.page_size, torch.tensor([keys for _, keys in rows])
    counts = (keys + size - 1) // size
    owned = torch.arange(table.shape[1])[None] < counts[:, None]
    blocks, pages = torch.unique(table[owned], return_inverse=True)
    tensors = {"kv_indptr": _offsets(host_ints(counts)), "kv_indices": pages.to(torch.int32)}
    if any(new != 1 for new, _ in rows):
        tensors["qo_indptr"] = _offsets(new for new, _ in rows)
    if form.last_page_len:
        tensors["kv_last_page_len"] = (keys - (counts - 1) * size).to(torch.int32)
    if kept is not None:
        starts = tensors["kv_indptr"].tolist()
        slots = [_slots(pages[starts[row] : starts[row + 1]], n, size) for row, (_, n) in enumerate(rows)]
        where = torch.cat(slots)
        tensors["q"] = kept.query
        for name, vectors in (("k_cache", kept.key), ("v_cache", kept.value)):
            cache = vectors.new_zeros(len(blocks) * size, *vectors.shape[1:])
            cache[where] = vectors
            tensors[name] = cache.view(len(blocks), size, *vectors.shape[1:])
    return len(blocks), tensors


def _slots(pages: Tensor, length: int, size: int) -> Tensor:
    return (pages[:, None] * size + torch.arange(size)).flatten()[:length]


def _offsets(counts: Any) -> Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
