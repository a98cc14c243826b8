"""What the machine can do at most: reading memory, multiplying matrices. Measured in the rounds of what is held to
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ..interleave import timed_calls
from .report import LimitRow

MOST_READ = 256 * 2**20
"""Bytes of the largest buffer that is read: well above last-level caches."""
GEMM, SMALL_GEMM = 1024, 256
"""Rows and columns; the smaller where a product of the larger takes more than `GEMM_SECONDS`."""
GEMM_SECONDS = 0.1
LIMIT_CALLS = 9


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """A contender that does nothing but reach a limit."""

    name: str
    unit: str
    """``"GB/s"`` or ``"GFLOP/s"``."""
    work: float
    """Bytes or operations a call."""
    call: Callable[[], object]

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        return timed_calls(self.call, calls, warm)

    def rate(self, seconds: float) -> float:
        """In `unit`."""
        return self.work / seconds / 1e9


def read_limit(nbytes: int) -> Limit:
    """Reading a buffer as large as what a decode reads, at most 256 MiB, in order, with torch's threads.

    So it is the cache's bandwidth for what fits into a cache, and memory's for what does not. Of a dot product of two
    halves and a sum, the one that is faster here and now.
    """
    size = max(min(nbytes, MOST_READ), 4096)
    buffer = torch.ones(size // 4)
    a, b = buffer[: len(buffer) // 2], buffer[len(buffer) // 2 : len(buffer) // 2 * 2]
    call = min((lambda: torch.dot(a, b), buffer.sum), key=_best_seconds)
    return Limit(f"read {size / 2**20:.3g} MiB", "GB/s", float(size), call)


def gemm_limit(dtype: str) -> Limit:
    """A product of square matrices by torch's library: 1024³ where that takes less than 0.1 s, else 256³."""
    small = _gemm(dtype, SMALL_GEMM)
    estimate = _best_seconds(small.call) * (GEMM / SMALL_GEMM) ** 3
    return small if estimate > GEMM_SECONDS else _gemm(dtype, GEMM)


def _gemm(dtype: str, size: int) -> Limit:
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    out = torch.empty_like(a)
    return Limit(f"{dtype} gemm {size}³", "GFLOP/s", 2.0 * size**3, lambda: torch.mm(a, a, out=out))


def machine_limits(threads: Sequence[int], dtypes: Sequence[str], cache_bytes: int) -> list[LimitRow]:
    """Reading memory, reading a quarter of the last-level cache of `cache_bytes`, and products of matrices."""
    found: list[LimitRow] = []
    for count in threads:
        torch.set_num_threads(count)
        for limit in (
            read_limit(MOST_READ),
            read_limit(cache_bytes // 4),
            *(gemm_limit(dtype) for dtype in dict.fromkeys(("float32", *dtypes))),
        ):
            seconds = median(limit.turn(LIMIT_CALLS, warm=True))
            found.append(LimitRow(name=limit.name, threads=count, unit=limit.unit, rate=limit.rate(seconds)))
    return found


def _best_seconds(call: Callable[[], object]) -> float:
    return min(timed_calls(call, 3, warm=True))
