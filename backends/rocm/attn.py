"""`RocmAttention`: our Triton kernels, and a HIP kernel for decodes where one is installed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from ...core.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Limits,
    Mismatch,
    Workspace,
)
from .._aiter_ops import AITER, AiterOptions, check_op, found, unsupported
from ..libraries import stored_as_computed
from ..triton import TritonBackend
from .paged import OP, Decodes, PagedDecode, decodes, suits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A step: decodes for the HIP kernel, and the other rows, or all."""

    decodes: Decodes | None
    others: Any
    """None where all rows are such decodes."""
    first_token: int
    """Where the others' tokens begin."""


class RocmAttention(AttentionBackend[Plan]):
    """What runs on ROCm without any library: our own Triton kernels for every row.

    Where AITER is installed and its paged kernel (HIP) is made for the card and the layer, decodes go there. vLLM's
    fallback has the same shape, with a kernel of its own build.
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
            offered, layouts=("nhd",), graph=GraphSupport.SINGLE_TOKEN, padded_seq_len=1, needs_zeroed_cache=True
        )

    @staticmethod
    def _has_paged(device: Device) -> bool:
        """Whether AITER is on `device`, as far as that is known, and its paged kernel is made for it."""
        return AITER.package in device.libraries and not unsupported(device, OP)

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return cls.kernels.refusals(spec, device)

    @classmethod
    def availability(cls) -> Availability:
        return cls.kernels.availability()

    @classmethod
    def ops(cls, spec: AttentionSpec, device: Device, options: AiterOptions) -> tuple[str, ...]:
        plain = suits(spec) and spec.dtype in ("bfloat16", "float16") and not stored_as_computed(spec)
        return (OP,) if plain and cls._has_paged(device) else ()

    @classmethod
    def check_op(cls, name: str, target: str) -> None:
        check_op(name, target)

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._others = self.kernels(spec, device, limits, workspace)
        self._paged = None
        if self.ops(spec, device, self.options) and found().available:
            self._paged = PagedDecode(spec, device, limits, workspace, self.options)

    def plan(self, batch: AttentionBatch) -> Plan:
        rows = batch.counts.decodes if batch.graph is None else len(batch.seq_lens)
        if self._paged is None or rows == 0:
            return Plan(decodes=None, others=self._others.plan(batch), first_token=0)
        single, others = decodes(batch, rows, self.limits), None
        if rows < batch.num_reqs:
            others = self._others.plan(batch.rows(rows, batch.num_reqs))
        return Plan(decodes=single, others=others, first_token=batch.tokens(0, rows)[1])

    def prepare(self, plan: Plan) -> None:
        if plan.others is not None:
            self._others.prepare(plan.others)

    def write_kv(self, layer: LayerParams, key: Tensor, value: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        self._others.write_kv(layer, key, value, kv_cache, slot_mapping)

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: Plan,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        if plan.decodes is not None and self._paged is not None:
            if kv_cache is None:
                raise ValueError("the step has decodes over a cache, and none was given")
            rows = slice(0, plan.decodes.rows)
            self._paged.attend(query[rows], kv_cache, plan.decodes, out[rows])
        if plan.others is None:
            return
        rest = slice(plan.first_token, None)
        self._others.forward(
            layer,
            query[rest],
            key=None if key is None else key[rest],
            value=None if value is None else value[rest],
            kv_cache=kv_cache,
            plan=plan.others,
            out=out[rest],
            lse_out=None if lse_out is None else lse_out[rest],
        )
