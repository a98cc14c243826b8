"""Graphs without a device: what was recorded is called again, with the plans and tensors of when it was recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headstock.backends.reference import ReferenceBackend
from headstock.core.attention import Capabilities, Device, GraphSupport


def addresses(buffers: Sequence[Tensor]) -> list[tuple[object, ...]]:
    return [(buffer.data_ptr(), buffer.shape, buffer.stride(), buffer.dtype) for buffer in buffers]


@dataclass(eq=False)
class Replay:
    """A recording that holds its inputs to the addresses they had."""

    work: Callable[[], Tensor]
    places: list[tuple[object, ...]]
    output: Tensor
    count: int = 0

    def replay(self, buffers: Sequence[Tensor]) -> Tensor:
        assert addresses(buffers) == self.places, "a buffer has moved since the graph was recorded"
        self.count += 1
        self.output.copy_(self.work())
        return self.output


class Recorder:
    """A `Recorder` for CPUs."""

    def __init__(self) -> None:
        self.recordings: dict[int, Replay] = {}
        """By number of rows."""

    def record(self, work: Callable[[], Tensor], buffers: Sequence[Tensor]) -> Replay:
        recording = Replay(work, addresses(buffers), work().clone())
        self.recordings[len(buffers[0])] = recording
        return recording

    @property
    def num_replays(self) -> int:
        return sum(recording.count for recording in self.recordings.values())


class Gathering(ReferenceBackend):
    """Decode steps of a graph by plain torch over each row's whole table, so that no shape depends on a length: a
    device can capture it. Other steps are the reference's."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return replace(super().capabilities(device), graph=GraphSupport.SINGLE_TOKEN)

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        if plan.graph is None:
            super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
            return
        size, table = kv_cache.block_size, plan.block_table.long()
        positions = torch.arange(table.shape[1] * size, device=table.device)
        slots = table.repeat_interleave(size, 1) * size + positions % size
        seen = positions < plan.seq_lens[:, None]
        if self.spec.window is not None:
            seen &= positions >= plan.seq_lens[:, None] - 1 - self.spec.window[0]
        keys, values = (
            kv_cache.layout.gather_rows(plane, slots.flatten(), size).view(*slots.shape, *plane.shape[2:])
            for plane in (kv_cache.k, kv_cache.v)
        )
        result = scaled_dot_product_attention(
            query[:, :, None],
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=seen[:, None, None],
            scale=self.spec.scale,
            enable_gqa=True,
        )
        out.copy_(torch.where(seen.any(1)[:, None, None], result[:, :, 0], 0))


class Capturable(ReferenceBackend):
    """The reference with a plan of its own buffers, of which only those of the captured plan are read at a replay."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return replace(super().capabilities(device), graph=GraphSupport.SINGLE_TOKEN)

    def plan(self, batch):
        if batch.graph is None:
            return super().plan(batch)
        if not hasattr(self, "_kept"):
            self._kept: dict[int, Tensor] = {}
        size = batch.graph.padded_reqs
        lengths = self._kept.setdefault(size, torch.zeros_like(batch.seq_lens))
        lengths.copy_(batch.seq_lens)
        return super().plan(replace(batch, num_reqs=size, num_tokens=size, seq_lens=lengths))
