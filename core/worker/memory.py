"""How many bytes the KV cache may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from ..attention import Device
from ..errors import CapacityError

HOST_MEMORY = ("cpu", "mps")
"""Platforms whose memory is the machine's."""
CPU_DEFAULT = 4 * 2**30
"""Bytes of KV cache in the machine's memory, where nothing else is said: it belongs to other programs too."""


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory was refused, by the system or by a device."""
    refused = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return refused or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


@contextmanager
def taking_memory(what: str) -> Iterator[None]:
    """Where memory is refused meanwhile, raise `CapacityError` saying that it was for `what`."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise CapacityError(f"not enough memory for {what}: {str(error).splitlines()[0] or 'refused'}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBudget:
    """Bytes for the KV cache, and how they were found."""

    nbytes: int
    reason: str


def given_budget(nbytes: int) -> KVBudget:
    """What the user said."""
    return KVBudget(nbytes=nbytes, reason="given")


def cpu_budget(device: Device) -> KVBudget:
    """Half of what is available now that the weights are loaded, at most `CPU_DEFAULT`."""
    process = psutil.Process(os.getpid()).memory_info().rss
    available = psutil.virtual_memory().available
    if device.memory_bytes:
        # A container's limit is below what the machine has.
        available = min(available, device.memory_bytes - process)
    nbytes = min(CPU_DEFAULT, available // 2)
    if nbytes <= 0:
        raise CapacityError(f"no memory is available for the KV cache: the process holds {process / 2**20:.0f} MiB")
    return KVBudget(nbytes=nbytes, reason=f"half of {available / 2**30:.1f} GiB available, at most 4 GiB")


def device_budget(device: Device, utilization: float) -> KVBudget:
    """What `utilization` of the device's memory leaves beside weights and the peak of a profiling run just made."""
    card = torch.xpu if device.platform == "xpu" else torch.cuda
    free, total = card.mem_get_info(device.torch_device)
    peak = card.max_memory_allocated(device.torch_device)
    outside = total - free - card.memory_reserved(device.torch_device)
    nbytes = int(total * utilization) - peak - outside
    if nbytes <= 0:
        raise CapacityError(
            f"weights and activations peak at {(peak + outside) / 2**30:.2f} GiB, which is more than {utilization:.0%} "
            f"of {total / 2**30:.2f} GiB; raise memory_utilization or lower max_num_batched_tokens"
        )
    return KVBudget(nbytes=nbytes, reason=f"profiled: {utilization:.0%} of {total / 2**30:.1f} GiB less the peak")
