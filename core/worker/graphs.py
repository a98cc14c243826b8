"""Device graphs: steps of single tokens are recorded once a batch size, and replayed as one launch each.

A decode step is many small kernels, and launching them takes longer than running them. The recorded work reads and
writes where it did when it was recorded, so inputs come in buffers that never move, and a step is padded to the next
size. The idea and the sizes are vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..attention import Device, forward_context
from .attention import AttentionGroups
from .inputs import StepInputs

LARGEST = 512
"""Rows beyond which kernels are long enough to hide their launches."""


class Recording(Protocol):
    """Work that can be repeated."""

    def replay(self, buffers: Sequence[Tensor]) -> Tensor:
        """Do the work over what `buffers`, the same as recorded, hold now; its output, valid until the next time."""
        ...


class Recorder(Protocol):
    """Records the device work of a function."""

    def record(self, work: Callable[[], Tensor], buffers: Sequence[Tensor]) -> Recording:
        """Call `work`, which reads `buffers`, once or more, and record what it has the device do."""
        ...


class CudaRecording:
    """A captured CUDA or HIP graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self._output = output

    def replay(self, buffers: Sequence[Tensor]) -> Tensor:
        self._graph.replay()
        return self._output


class CudaRecorder:
    """Captures CUDA and HIP graphs on `device`, all in one memory pool, since only one runs at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Tensor], buffers: Sequence[Tensor]) -> CudaRecording:
        with torch.cuda.device(self._device):
            # What a first call builds or allocates for good must not become part of the graph.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                output = work()
        return CudaRecording(graph, output)


def recorder_for(device: Device) -> Recorder | None:
    """What records on `device`; None where there are no graphs."""
    return CudaRecorder(device.torch_device) if device.platform in ("cuda", "rocm") else None


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Batch sizes to record, ascending; the last is `max_rows` or `LARGEST`. Denser where padding costs more."""
    most = min(max_rows, LARGEST)
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST + 1, 16))
    return (*(size for size in steps if size < most), most)


class StepGraphs:
    """Owner of the recordings, one a size."""

    def __init__(
        self, recorder: Recorder, attention: AttentionGroups, forward: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """`forward` gives the hidden states (T, hidden) for int64 ids and positions (T,)."""
        self._recorder = recorder
        self._attention = attention
        self._forward = forward
        self._recordings: dict[int, Recording] = {}

    def capture(self, inputs: StepInputs) -> None:
        """Record a step with these inputs, which stand in the buffers of all steps to come."""
        context = self._attention.plan(inputs.batches)

        def work() -> Tensor:
            self._attention.prepare(context)
            with forward_context(context):
                return self._forward(inputs.input_ids, inputs.positions)

        self._recordings[len(inputs.positions)] = self._recorder.record(work, inputs.buffers())
        self._attention.workspace.keep()

    def replay(self, inputs: StepInputs) -> Tensor:
        """Hidden states of a step that was padded to a size that is recorded."""
        # The recorded work reads the plans it was recorded with; planning anew fills their buffers.
        self._attention.plan(inputs.batches)
        return self._recordings[len(inputs.positions)].replay(inputs.buffers())
