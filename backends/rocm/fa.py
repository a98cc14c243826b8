"""`AiterFlashAttention`: AITER's compiled kernels, some for decodes and one for all other rows; over two layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ...core.attention import (
    AttentionBackend,
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    GraphSupport,
    Mismatch,
    PhaseSplit,
    common,
)
from .._aiter_ops import AiterOptions, check_op, found, needed, unsupported
from .paged import PagedAttention, PagedDecode, ShuffledDecode
from .unified import OP as UNIFIED
from .unified import AiterUnified
from .varlen import OP as VARLEN
from .varlen import Varlen


class AiterFlashAttention(PhaseSplit):
    """AITER's compiled kernels, the step split in three as vLLM does for them.

    Decodes go to paged attention, or to unified attention where that lacks something: windows, sinks, heads of 256,
    more than 16 query heads a KV head, 8-bit caches. Prompts, and rows with context and several queries, go to
    `Varlen`.
    """

    calls: ClassVar[tuple[str, ...]] = (VARLEN, PagedAttention.op, UNIFIED)
    requires = (needed(*calls),)
    Options = AiterOptions
    varlen: ClassVar[type[Varlen]] = Varlen
    any_decode: ClassVar[type[AiterUnified | PagedDecode]] = AiterUnified
    """What computes decodes of every layer that it takes."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if unsupported(device, *cls.calls):
            return Capabilities()
        offered = common(cls.varlen.capabilities(device), cls.any_decode.capabilities(device))
        return replace(offered, graph=GraphSupport.SINGLE_TOKEN)

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return cls.varlen.refusals(spec, device)

    @classmethod
    def availability(cls) -> Availability:
        return found(*cls.calls)

    @classmethod
    def ops(cls, spec: AttentionSpec, device: Device, options: AiterOptions) -> tuple[str, ...]:
        return (VARLEN, cls.decode(spec, device).op)

    @classmethod
    def check_op(cls, name: str, target: str) -> None:
        check_op(name, target)

    @classmethod
    def decode(cls, spec: AttentionSpec, device: Device) -> type[AiterUnified | PagedDecode]:
        """What computes the decodes of such a layer."""
        return PagedAttention if PagedAttention.suits(spec, device) else cls.any_decode

    def make_parts(self) -> Mapping[str, AttentionBackend[Any]]:
        parts = {"decode": self.decode(self.spec, self.device), "prefill": self.varlen}
        return {
            name: part(self.spec, self.device, self.limits, self.workspace, self.options)
            for name, part in parts.items()
        }


class ShuffledFlashAttention(AiterFlashAttention):
    """The same over a cache in layout ``shuffle``, which AITER's assembly kernel for decodes reads.

    vLLM has this behind a switch that is off; here it is a backend of its own, since it takes much less.
    """

    calls = (VARLEN, ShuffledDecode.op)
    requires = (needed(*calls),)
    any_decode = ShuffledDecode

    @classmethod
    def decode(cls, spec: AttentionSpec, device: Device) -> type[AiterUnified | PagedDecode]:
        return ShuffledDecode
