"""Reading a folder of FlashInfer-Trace: definitions and workloads of anybody's, of which nothing is executed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, TypeVar

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...core.errors import InvalidInput
from .definitions import read_definition
from .forms import OP_TYPES, Form

T = TypeVar("T")
SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int32": "I32"}
"""Names of dtypes in its files."""


class TensorSpec(msgspec.Struct):
    """As in the schema, as far as it is read."""

    dtype: str
    shape: list[str] | None = None


class Axis(msgspec.Struct):
    type: str
    value: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Definition(msgspec.Struct):
    name: str
    op_type: str
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    reference: str


class Input(msgspec.Struct):
    type: str
    path: str = ""
    tensor_key: str = ""
    value: Any = None


class Binding(msgspec.Struct):
    uuid: str
    axes: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    inputs: dict[str, Input]


class Line(msgspec.Struct):
    """One of a file of workloads."""

    definition: str
    workload: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What cannot be imported."""

    definition: str
    workload: str
    """Its uuid; empty where it is the definition that cannot be."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A workload and where its tensors are."""

    definition: Definition
    form: Form
    binding: Binding
    root: Path

    @property
    def scale(self) -> float:
        """The softmax scale; 0 where it is that of the head size, in the schema's float32. Raises `Unfit`."""
        given = self.binding.inputs.get("sm_scale")
        value = given.value if given is not None and given.type == "scalar" else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise Unfit(f"sm_scale is {value!r}, and has to be a positive number")
        usual = 1 / math.sqrt(self.form.head_size)
        return 0.0 if torch.tensor(value).float() == torch.tensor(usual).float() else float(value)

    def kept(self, name: str) -> bool:
        """Whether an input is in a file."""
        given = self.binding.inputs.get(name)
        return given is not None and given.type == "safetensors"

    def tensor(self, name: str) -> Tensor:
        """An input from its file. Raises `Unfit` where it is in none, or is not what the definition says."""
        with self._file(name) as (file, key):
            return file.get_tensor(key)

    def check(self, name: str) -> None:
        """Raise `Unfit` where `tensor` would, without reading it."""
        with self._file(name):
            pass

    @contextmanager
    def _file(self, name: str) -> Iterator[tuple[Any, str]]:
        """The open file with an input, and the key in it, after its shape and dtype were looked at."""
        given, about = self.binding.inputs.get(name), self.definition.inputs[name]
        if given is None or not self.kept(name):
            raise Unfit(f"{name} is {given.type if given else 'missing'}, and has to come from a file")
        path = self.root / given.path
        try:
            with safe_open(path, framework="pt") as file:
                if given.tensor_key not in file.keys():  # noqa: SIM118 - it is no mapping
                    raise Unfit(f"{given.path} holds no {given.tensor_key!r}")
                found = file.get_slice(given.tensor_key)
                self._compare(name, about, found.get_shape(), found.get_dtype())  # before anything is allocated
                yield file, given.tensor_key
        except FileNotFoundError as error:
            raise Unfit(f"{given.path} is missing") from error
        except (OSError, SafetensorError) as error:
            advice = "; it is a Git LFS pointer: git lfs pull" if _is_pointer(path) else ""
            raise Unfit(f"{given.path} cannot be read: {error}{advice}") from error

    def _compare(self, name: str, about: TensorSpec, shape: list[int], dtype: str) -> None:
        if dtype != SAFETENSORS[about.dtype]:
            raise Unfit(f"{name} is {dtype} in its file, and {about.dtype} in the definition")
        wanted = [self._size(axis) for axis in about.shape or ()]
        if len(shape) != len(wanted) or any(w not in (None, n) for w, n in zip(wanted, shape, strict=True)):
            raise Unfit(f"{name} is {shape} in its file, and {wanted} in the workload")

    def _size(self, axis: str) -> int | None:
        known = self.definition.axes.get(axis)
        return self.binding.axes.get(axis) if known is None or known.value is None else known.value


class Unfit(Exception):
    """Why a workload cannot be imported, in words."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """What a data set holds."""

    sources: list[Source] = field(default_factory=list[Source])
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    others: list[str] = field(default_factory=list[str])
    """Definitions of other things than attention."""


def read_dataset(folder: str, wanted: str) -> Contents:
    """The workloads of all definitions whose names fit the pattern `wanted`.

    Raises `InvalidInput` where the folder is no data set, a file is not as the schema says, nothing fits, or the path
    of a file leads out of the folder.
    """
    root = Path(os.path.expanduser(folder))
    if not os.path.isdir(root / "definitions"):
        raise InvalidInput("dataset", f"{folder} has no folder definitions: it is no data set of FlashInfer-Trace")
    contents = Contents()
    every = _definitions(root)
    chosen = {name: known for name, known in every.items() if fnmatchcase(name, wanted)}
    if not chosen:
        raise InvalidInput("definition", f"none of {folder} fits {wanted!r}; it has {', '.join(every) or 'none'}")
    forms: dict[str, Form] = {}
    for name, known in chosen.items():
        form, against = read_definition(msgspec.to_builtins(known))
        if form is not None:
            forms[name] = form
        elif known.op_type in OP_TYPES.values() or name == wanted:
            contents.skipped.append(Skipped(definition=name, workload="", reasons=against))
        else:
            contents.others.append(name)
    for line in _lines(root):
        if line.definition in forms:
            known, form = chosen[line.definition], forms[line.definition]
            contents.sources.append(Source(definition=known, form=form, binding=line.workload, root=root))
        elif line.definition not in every:
            reason = "its definition is not in the data set"
            found = Skipped(definition=line.definition, workload=line.workload.uuid, reasons=(reason,))
            contents.skipped.append(found)
    return contents


def _definitions(root: Path) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    for path in sorted((root / "definitions").rglob("*.json")):
        known = _decode(_read(path), Definition, str(path.relative_to(root)))
        if known.name in found:
            raise InvalidInput("dataset", f"{path.relative_to(root)} defines {known.name} a second time")
        found[known.name] = known
    return found


def _lines(root: Path) -> Iterator[Line]:
    """Of all files of workloads; every path in them was looked at."""
    for path in sorted((root / "workloads").rglob("*.jsonl")):
        for number, text in enumerate(_read(path).splitlines(), 1):
            if not text.strip():
                continue
            where = f"{path.relative_to(root)}, line {number}"
            line = _decode(text, Line, where)
            for given in line.workload.inputs.values():
                _check_path(given.path, where)
            yield line


def _check_path(name: str, where: str) -> None:
    """Links are left alone: the Hub's cache keeps its files behind them."""
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in PureWindowsPath(name).parts or "\0" in name:
        raise InvalidInput("dataset", f"{where}: the path {name!r} leads out of the data set")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("dataset", f"{path} cannot be read: {error.strerror}") from error


def _decode(text: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(
            "dataset", f"{where} is not as FlashInfer-Trace has it, or of another version of it: {error}"
        ) from error


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(40).startswith(b"version https://git-lfs")
    except OSError:
        return False
