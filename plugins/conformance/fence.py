"""`Fenced`: a tensor between two zones that nobody may write."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FENCE_BYTES = 4096
"""Width of each zone: a page, and a multiple of any alignment."""


class Fenced:
    """Owner of a piece of memory with a tensor in its middle.

    What is written outside of the tensor, or in the gaps between its rows, is found afterwards.
    """

    def __init__(self, storage: Tensor, tensor: Tensor) -> None:
        self._storage = storage
        self.tensor = tensor
        """A view into the middle of the storage."""
        self._sealed = storage.clone()

    @classmethod
    def around(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        strides: tuple[int, ...] | None = None,
        fill: float = float("nan"),
    ) -> Fenced:
        """A tensor of this shape; everything, fence and gaps included, holds `fill` (or its nearest code)."""
        storage, tensor = allocate(shape, dtype, device, strides=strides)
        fill_raw(storage, dtype, fill)
        return cls(storage, tensor)

    def copy(self, device: str) -> Fenced:
        """The same memory once more, on `device`."""
        storage = self._sealed.to(device, copy=True)
        return Fenced(
            storage,
            storage.view(self.tensor.dtype).as_strided(
                self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
            ),
        )

    def seal(self) -> None:
        """From now on, what is there is how it has to be."""
        self._sealed.copy_(self._storage)

    def touched(self) -> str:
        """``""``, ``"inside"`` or ``"outside"``: where bytes are not as they were when sealed; outside is the worse."""
        if torch.equal(self._storage, self._sealed):
            return ""
        kept = self._storage.clone()
        view = self._view(kept)
        view.copy_(self._view(self._sealed))
        return "inside" if torch.equal(kept, self._sealed) else "outside"

    def _view(self, storage: Tensor) -> Tensor:
        """The bytes of the tensor within a copy of the storage, in integers: comparing must not mind NaN."""
        t = self.tensor
        return storage.view(_INTEGERS[t.element_size()]).as_strided(t.shape, t.stride(), t.storage_offset())


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def allocate(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, *, strides: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """(uint8 storage, tensor in its middle), uninitialised."""
    steps = strides or torch.empty(shape, device="meta").stride()
    elements = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) if all(shape) else 0
    fence = FENCE_BYTES // dtype.itemsize
    size = elements * dtype.itemsize
    total = 2 * FENCE_BYTES + -(-size // 8) * 8
    storage = torch.empty(total, dtype=torch.uint8, device=device)
    return storage, storage.view(dtype).as_strided(shape, steps, fence)


def fill_raw(storage: Tensor, dtype: torch.dtype, value: float) -> None:
    """Fill a uint8 storage with `value` as `dtype` holds it."""
    if dtype.itemsize > 1:
        storage.view(dtype).fill_(value)
    else:
        storage.fill_(byte_code(dtype, value))


def byte_code(dtype: torch.dtype, value: float) -> int:
    """The byte that `value` is in an 8-bit dtype: the nearest there is, which for inf may be NaN."""
    if not dtype.is_floating_point:
        return 127 if math.isnan(value) else int(max(-128, min(127, value))) % 256
    if math.isnan(value) or math.isinf(value):
        negative = 0x80 if value < 0 else 0
        return (
            0x80
            if dtype == torch.float8_e4m3fnuz
            else negative | (0x7F if math.isnan(value) else _INF.get(dtype, 0x7F))
        )
    most = torch.finfo(dtype).max
    return int(torch.tensor(max(-most, min(most, value))).to(dtype).view(torch.uint8))


_INF = {torch.float8_e5m2: 0x7C}
