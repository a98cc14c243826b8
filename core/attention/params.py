"""What belongs to one layer, and what an instance must be sized for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .spec import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerParams:
    """One layer's own values, of this rank; never the module."""

    name: str
    spec: AttentionSpec
    sinks: Tensor | None = None
    """float32 (Hq,): sink logits, by query head."""
    alibi_slopes: Tensor | None = None
    """float32 (Hq,): slopes, by global head index."""
    k_scale: Tensor | None = None
    """float32 () or (Hkv,): stored K times this is K; None for unscaled formats."""
    v_scale: Tensor | None = None
    k_scale_float: float = 1.0
    """The scalar `k_scale` on the host, for kernels that take it as an argument; 1.0 where it is per head."""
    v_scale_float: float = 1.0
    kv_layer: str = ""
    """Layer whose cache this one reads; its own name unless it shares another's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_layer", self.kv_layer or self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest step an instance will see; buffers are sized by it once."""

    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    max_blocks_per_req: int
    """Width of the block table."""
    max_draft_tokens: int = 0
    capture_sizes: tuple[int, ...] = ()
    """Padded batch sizes that will be captured."""
    plans_in_flight: int = 1
    """A plan's buffers stay valid until so many further plans were made."""


class Workspace:
    """Scratch memory shared by all attention groups of a stream. Grows to the largest request and stays.

    Contents do not survive a call: each `forward` takes what it needs anew.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._kept: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """Bytes held; the profiling run counts them."""
        outgrown = sum(kept.numel() for kept in self._kept if kept is not self._buffer)
        return self._buffer.numel() + outgrown

    def get(self, nbytes: int) -> Tensor:
        """uint8 (nbytes,), uninitialised."""
        if nbytes > self._buffer.numel():
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return self._buffer[:nbytes]

    def keep(self) -> None:
        """Never give the present memory back, though it is outgrown: a captured graph works there."""
        if not any(kept is self._buffer for kept in self._kept):
            self._kept.append(self._buffer)
