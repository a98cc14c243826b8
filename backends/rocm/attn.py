"""`RocmAttention`: our Triton kernels, and a HIP kernel for decodes where one is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from ...core.attention import (
    AttentionBackend,
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Mismatch,
    PhaseSplit,
)
from .._aiter_ops import AITER, AiterOptions, check_op, found, unsupported
from ..triton import TritonBackend
from .paged import PackedDecode

LONGEST = 128 * 1024
"""Keys up to which vLLM takes such a kernel; one that took its place has none of its limits."""


class RocmAttention(PhaseSplit):
    """What runs on ROCm without any library: our own Triton kernels for every row.

    Where AITER is installed and its paged kernel (HIP) is made for the card, K and V lie in ``x_packed`` planes, and
    decodes of layers that it is made for go there. vLLM's fallback has the same shape, with a kernel of its own build.
    """

    Options = AiterOptions
    kernels: ClassVar[type[AttentionBackend[Any]]] = TritonBackend

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if device.platform != "rocm":
            return Capabilities()
        offered = cls.kernels.capabilities(device)
        if offered == Capabilities() or not cls._has_paged(device):
            return offered
        return replace(
            offered,
            layouts=("x_packed",),
            graph=GraphSupport.SINGLE_TOKEN,
            zero_length_rows=False,
            padded_seq_len=1,
            needs_zeroed_cache=True,
        )

    @staticmethod
    def _has_paged(device: Device) -> bool:
        """Whether AITER is on `device`, as far as that is known, and its paged kernel is made for it."""
        return AITER.package in device.libraries and not unsupported(device, PackedDecode.op)

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return cls.kernels.refusals(spec, device)

    @classmethod
    def availability(cls) -> Availability:
        return cls.kernels.availability()

    @classmethod
    def ops(cls, spec: AttentionSpec, device: Device, options: AiterOptions) -> tuple[str, ...]:
        return (PackedDecode.op,) if cls._has_paged(device) and PackedDecode.suits(spec, device) else ()

    @classmethod
    def check_op(cls, name: str, target: str) -> None:
        check_op(name, target)

    def make_parts(self) -> Mapping[str, AttentionBackend[Any]]:
        own = (self.spec, self.device, self.limits, self.workspace)
        others, ops = self.kernels(*own), self.ops(self.spec, self.device, self.options)
        too_long = self.limits.max_model_len > LONGEST and PackedDecode.op not in dict(self.options.aiter_ops)
        if not ops or not found(*ops).available or too_long:
            return {"prefill": others}
        return {"decode": PackedDecode(*own, self.options), "prefill": others}

    def write_kv(self, layer: LayerParams, key: Tensor, value: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        self._parts["prefill"].write_kv(layer, key, value, kv_cache, slot_mapping)
