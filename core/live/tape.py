"""`Tape`: attention batches as they are computed, written to a file that can be read whenever the process ends.

The file is a row of frames, each eight bytes of length (little endian) and so many of safetensors, whose metadata hold
one JSON object under ``"frame"``: first ``file``, then ``groups`` before the first step, then ``step`` after ``step``,
and ``tensors`` where wanted. A frame is with the system before the next begins, so that what another process reads ends
at worst in a part of the last one.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from ..attention import AttentionBatch, AttentionSpec, KVCache, LayerParams, slots_of, spec_document
from ..errors import InvalidInput
from ..version import __version__

VERSION = 1
"""Of the file's form. Readers take this one and those before."""
KIND = "headstock attention recording"
LENGTH = struct.Struct("<Q")
LIMIT = 2**30
"""Bytes after which nothing more is written, where the user says nothing else."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapedGroup:
    """Layers whose attention is alike."""

    kv_group: int
    """Index of the batch they share, among a step's."""
    spec: AttentionSpec
    backend: str
    layers: tuple[str, ...]


class Tape:
    """Owner of the file. One engine writes to it."""

    def __init__(
        self, path: str | os.PathLike[str], *, tensors: bool = False, every: int = 1, limit: int = LIMIT
    ) -> None:
        """Begin `path` anew. `tensors` also keeps queries, keys and values of one layer a group, which are users' data;
        `every` keeps each n-th step; `limit` is in bytes. Raises `InvalidInput` naming what is wrong."""
        for name, value in (("record_every", every), ("record_limit", limit)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(name, f"must be at least 1, not {value!r}")
        self.tensors = tensors
        self._every, self._limit = every, limit
        self._steps = self._size = 0
        self._on = True
        self._known: tuple[TapedGroup, ...] = ()
        try:
            self._file = os.open(os.path.expanduser(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise InvalidInput("record_attention", f"{path} cannot be written: {error.strerror}") from error
        self._write({"frame": "file", "kind": KIND, "version": VERSION, "headstock": __version__, "tensors": tensors})

    def step(
        self, groups: Sequence[TapedGroup], batches: Sequence[AttentionBatch], block_tables: Sequence[Tensor | None]
    ) -> bool:
        """Keep a step, if it is its turn; whether it is. `batches` are those of the KV groups, and `block_tables`
        theirs on the host: nothing here waits for a device, unless the lengths are nowhere else."""
        self._steps += 1
        if not self._on or (self._steps - 1) % self._every:
            return False
        if self._known != (known := tuple(groups)):
            self._known = known
            self._write({"frame": "groups", "groups": [_document(group) for group in known]})
        sizes = {group.kv_group: group.spec.block_size for group in known}
        arrays: dict[str, np.ndarray] = {}
        for index, (batch, table) in enumerate(zip(batches, block_tables, strict=True)):
            rows = batch.num_reqs
            lengths = _host(batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu)[:rows]
            arrays[f"{index}.query_start_loc"] = _host(batch.query_start_loc_cpu)[: rows + 1]
            arrays[f"{index}.seq_lens"] = lengths
            if table is not None and rows:
                width = -(-int(lengths.max()) // sizes.get(index, 1))
                arrays[f"{index}.block_table"] = _host(table[:rows, :width])
        return self._write({"frame": "step", "step": self._steps, "time_ns": time.time_ns()}, arrays)

    def attention(self, layer: LayerParams, query: Tensor, cache: KVCache, batch: AttentionBatch, group: int) -> bool:
        """Keep one layer's vectors in the step that was kept last: its queries, and all keys and values they see.
        Whether they are."""
        if not self._on:
            return False
        assert batch.block_table is not None  # only layers with a cache are kept
        lengths = _host(batch.seq_lens)[: batch.num_reqs].tolist()
        parts = [
            cache.layout.gather(cache, layer, slots_of(batch.block_table[row], length, cache.block_size), query.dtype)
            for row, length in enumerate(lengths)
        ]
        arrays = {
            "query": _bits(query[: batch.num_tokens]),
            "key": _bits(torch.cat([key for key, _ in parts])),
            "value": _bits(torch.cat([value for _, value in parts])),
        }
        dtype = str(query.dtype).removeprefix("torch.")
        return self._write(
            {"frame": "tensors", "step": self._steps, "group": group, "layer": layer.name, "dtype": dtype}, arrays
        )

    def _write(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bool:
        kept = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        data = save(kept or {"none": np.zeros(1, np.uint8)}, metadata={"frame": json.dumps(about)})
        if self._size + len(data) > self._limit:
            self._on = False
            logger.warning("the recording has reached its limit of %d bytes; nothing more is written", self._limit)
            return False
        frame = memoryview(LENGTH.pack(len(data)) + data)
        try:
            while frame:  # one call but for frames of more than 2 GiB, and for a disk that is full
                frame = frame[os.write(self._file, frame) :]
        except OSError as error:  # a full disk ends the recording, not the engine
            self._on = False
            logger.warning("the recording ends here: %s", error.strerror)
            return False
        self._size += LENGTH.size + len(data)
        return True

    def close(self) -> None:
        """Nothing is lost without it: every frame is with the system already."""
        os.close(self._file)


_installed: Tape | None = None


def current_tape() -> Tape | None:
    """The one that is installed."""
    return _installed


@contextmanager
def taping(tape: Tape) -> Generator[Tape]:
    """Install `tape` for the body, for the engine in this process; closed afterwards."""
    global _installed  # noqa: PLW0603 - one a process is what it is
    before, _installed = _installed, tape
    try:
        yield tape
    finally:
        _installed = before
        tape.close()


def _document(group: TapedGroup) -> dict[str, Any]:
    return {**asdict(group), "spec": spec_document(group.spec)}


def _host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _bits(tensor: Tensor) -> np.ndarray:
    """As bytes, the last dimension's widened: numpy knows no bfloat16."""
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy()
