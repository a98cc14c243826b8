"""`--record-attention`: the attention batches that an engine computes, in a file for `headstock replay`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from ...core.errors import InvalidInput
from .console import size_in_bytes

RECORDING = "Recording"


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is recorded of a running engine."""

    record_attention: Annotated[
        str | None,
        Option(help="Write the attention batches to this file; see headstock replay.", metavar="FILE",
               rich_help_panel=RECORDING),
    ] = None  # fmt: skip
    record_tensors: Annotated[
        bool,
        Option("--record-tensors", help="Record queries, keys and values, too: they carry what users wrote.",
               rich_help_panel=RECORDING),
    ] = False  # fmt: skip
    record_every: Annotated[int, Option(min=1, help="Only each n-th step.", rich_help_panel=RECORDING)] = 1
    record_limit: Annotated[
        str, Option(help="The file's largest size, e.g. 1G.", metavar="SIZE", rich_help_panel=RECORDING)
    ] = "1G"

    def recording(self, engine: str) -> AbstractContextManager[object]:
        """While it is open, engines in this process are recorded, where that was asked for.

        Raises `InvalidInput` where the file cannot be written, or `engine` lives in another process.
        """
        limit = size_in_bytes("record_limit", self.record_limit)
        if self.record_attention is None:
            if self.record_tensors:
                raise InvalidInput("record_tensors", "is about a recording; name its file with --record-attention")
            return nullcontext()
        if engine != "inproc":
            raise InvalidInput("record_attention", f"takes the engine in this process, and --engine is {engine}")
        from ...core.live import Tape, taping

        assert limit is not None  # it has a default
        tape = Tape(self.record_attention, tensors=self.record_tensors, every=self.record_every, limit=limit)
        return taping(tape)
