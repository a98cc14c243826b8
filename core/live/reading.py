"""Reading a recording, also one that is still being written or was cut short."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ..attention import read_spec
from ..errors import InvalidInput
from .tape import KIND, LENGTH, VERSION, TapedGroup

DAMAGED = (
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    SafetensorError,
    TypeError,
    ValueError,
    struct.error,
)
"""What a frame raises that holds something else than it should."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTensors:
    """One layer's vectors in a step."""

    group: int
    layer: str
    query: Tensor
    """(T, Hq, D)."""
    key: Tensor
    """(sum of all rows' keys, Hkv, D), row after row, each from its first token on."""
    value: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedStep:
    """A step's batches."""

    number: int
    time_ns: int
    """Nanoseconds of the epoch."""
    groups: tuple[TapedGroup, ...]
    query_start_loc: tuple[tuple[int, ...], ...]
    """(R+1,) for each KV group."""
    seq_lens: tuple[tuple[int, ...], ...]
    """(R,) for each KV group."""
    block_tables: tuple[Tensor | None, ...] = ()
    """int32 (R, width) for each KV group, None for one without a cache."""
    tensors: list[RecordedTensors] = field(default_factory=list["RecordedTensors"])

    def rows(self, kv_group: int) -> tuple[tuple[int, int], ...]:
        """New tokens and keys of each row."""
        starts = self.query_start_loc[kv_group]
        new = [end - start for start, end in pairwise(starts)]
        return tuple(zip(new, self.seq_lens[kv_group], strict=True))


@dataclass(slots=True, kw_only=True)
class Recording:
    """All that a file holds."""

    headstock: str
    """Version that wrote it."""
    steps: list[RecordedStep] = field(default_factory=list[RecordedStep])
    cut_short: bool = False
    """The last frame is not whole: the process ended while it wrote, or is still writing."""


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Raises `InvalidInput` where the file cannot be read, is no recording, or is of a newer version."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return _read(str(path), file)
    except OSError as error:
        raise InvalidInput("recording", f"{path} cannot be read: {error.strerror}") from error


def _read(path: str, file: BinaryIO) -> Recording:
    frames = _frames(file)
    try:
        about, _ = next(frames)
        if about["kind"] != KIND:
            raise KeyError(about["kind"])
    except (_CutShort, StopIteration, *DAMAGED) as error:
        raise InvalidInput("recording", f"{path} is no recording of attention") from error
    if about.get("version", 0) > VERSION:
        raise InvalidInput("recording", f"{path} was written by a newer Headstock ({about.get('headstock')}); update")
    found = Recording(headstock=str(about.get("headstock")))
    groups: tuple[TapedGroup, ...] = ()
    try:
        for about, data in frames:
            if about["frame"] == "groups":
                groups = tuple(_group(values) for values in about["groups"])
            elif about["frame"] == "step":
                found.steps.append(_step(about, load(data), groups))
            elif about["frame"] == "tensors":
                found.steps[-1].tensors.append(_tensors(about, load(data), found.steps[-1]))
    except _CutShort:
        found.cut_short = True
    except DAMAGED as error:
        raise InvalidInput("recording", f"{path} is damaged: {type(error).__name__}: {error}") from error
    return found


class _CutShort(Exception):
    """The file ends inside a frame."""


def _frames(file: BinaryIO) -> Iterator[tuple[Mapping[str, Any], bytes]]:
    end = os.fstat(file.fileno()).st_size
    while head := file.read(LENGTH.size):
        (size,) = LENGTH.unpack(head) if len(head) == LENGTH.size else (end,)
        if size > end - file.tell():  # also what is no length at all: nothing is allocated for it
            raise _CutShort
        data = file.read(size)
        yield json.loads(_metadata(data)["frame"]), data


def _metadata(data: bytes) -> Mapping[str, Any]:
    """The header of safetensors: eight bytes of length, and JSON."""
    (size,) = LENGTH.unpack(data[: LENGTH.size])
    return json.loads(data[LENGTH.size : LENGTH.size + size])["__metadata__"]


def _group(values: Mapping[str, Any]) -> TapedGroup:
    return TapedGroup(**{**values, "spec": read_spec(values["spec"]), "layers": tuple(values["layers"])})


def _step(about: Mapping[str, Any], arrays: Mapping[str, Tensor], groups: tuple[TapedGroup, ...]) -> RecordedStep:
    batches = range(sum(name.endswith(".seq_lens") for name in arrays))
    step = RecordedStep(
        number=about["step"],
        time_ns=about["time_ns"],
        groups=groups,
        query_start_loc=tuple(tuple(arrays[f"{i}.query_start_loc"].tolist()) for i in batches),
        seq_lens=tuple(tuple(arrays[f"{i}.seq_lens"].tolist()) for i in batches),
        block_tables=tuple(arrays.get(f"{i}.block_table") for i in batches),
    )
    for group in groups:
        if any(not 0 <= new <= keys for new, keys in step.rows(group.kv_group)):
            raise ValueError(f"step {step.number} has a row of more new tokens than keys")
    return step


def _tensors(about: Mapping[str, Any], arrays: Mapping[str, Tensor], step: RecordedStep) -> RecordedTensors:
    dtype, group = getattr(torch, about["dtype"]), step.groups[about["group"]]
    vectors = {name: arrays[name].view(dtype) for name in ("query", "key", "value")}
    new, keys = (sum(counts) for counts in zip(*step.rows(group.kv_group), strict=True))
    spec = group.spec
    for name, shape in (
        ("query", (new, spec.num_heads, spec.head_size)),
        ("key", (keys, spec.num_kv_heads, spec.head_size)),
        ("value", (keys, spec.num_kv_heads, spec.head_size_v)),
    ):
        if vectors[name].shape != shape:
            raise ValueError(f"step {step.number}: {name} is {tuple(vectors[name].shape)}, not {shape}")
    return RecordedTensors(group=about["group"], layer=about["layer"], **vectors)
