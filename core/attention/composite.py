"""Two backends for one layer: decode rows to one, all other rows to the other, over the same cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from .backend import AttentionBackend
from .batch import AttentionBatch
from .cache import KVCache
from .capabilities import Capabilities, Mismatch, common
from .device import Device
from .params import LayerParams, Limits, Workspace
from .requirements import Availability
from .spec import AttentionSpec

AnyBackend = AttentionBackend[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOptions:
    """Options of both parts."""

    decode: Any = None
    prefill: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """The parts' plans; None where the step has no rows for a part."""

    tokens: int
    """Query tokens of the decode rows, which come first."""
    decode: Any
    prefill: Any


class PhaseComposite(AttentionBackend[PhasePlan]):
    """Made by `by_phase`. Offers what both parts offer, and needs what either needs."""

    decode_cls: ClassVar[type[AnyBackend]]
    prefill_cls: ClassVar[type[AnyBackend]]
    Options: ClassVar[type] = PhaseOptions

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return common(cls.decode_cls.capabilities(device), cls.prefill_cls.capabilities(device))

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return (*cls.decode_cls.refusals(spec, device), *cls.prefill_cls.refusals(spec, device))

    @classmethod
    def availability(cls) -> Availability:
        return Availability(reasons=(*cls.decode_cls.availability().reasons, *cls.prefill_cls.availability().reasons))

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self.decode = self.decode_cls(spec, device, limits, workspace, self.options.decode)
        self.prefill = self.prefill_cls(spec, device, limits, workspace, self.options.prefill)

    def bind(self, layer: LayerParams) -> None:
        self.decode.bind(layer)
        self.prefill.bind(layer)

    def plan(self, batch: AttentionBatch) -> PhasePlan:
        decodes, rows = batch.counts.decodes, batch.num_reqs
        return PhasePlan(
            tokens=batch.counts.decode_tokens,
            decode=self.decode.plan(batch.rows(0, decodes)) if decodes else None,
            prefill=self.prefill.plan(batch.rows(decodes, rows)) if decodes < rows else None,
        )

    def prepare(self, plan: PhasePlan) -> None:
        if plan.decode is not None:
            self.decode.prepare(plan.decode)
        if plan.prefill is not None:
            self.prefill.prepare(plan.prefill)

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: PhasePlan,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        for part, sub, rows in (
            (self.decode, plan.decode, slice(0, plan.tokens)),
            (self.prefill, plan.prefill, slice(plan.tokens, None)),
        ):
            if sub is not None:
                part.forward(
                    layer,
                    query[rows],
                    key=None if key is None else key[rows],
                    value=None if value is None else value[rows],
                    kv_cache=kv_cache,
                    plan=sub,
                    out=out[rows],
                    lse_out=None if lse_out is None else lse_out[rows],
                )


def by_phase(decode: type[AnyBackend], prefill: type[AnyBackend]) -> type[AnyBackend]:
    """A backend that sends decode rows to `decode` and the others to `prefill`."""
    name = f"{decode.__name__}And{prefill.__name__}"
    return PhaseComposite.derive(
        name, decode_cls=decode, prefill_cls=prefill, requires=decode.requires + prefill.requires
    )
