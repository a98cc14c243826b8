"""Several backends for one layer, over one cache: decode rows to one, other rows to another, masked ones to a third.

That steps with extra masks go elsewhere is vLLM's idea, for prompts with images.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from .backend import AttentionBackend
from .batch import AttentionBatch
from .cache import KVCache
from .capabilities import Capabilities, GraphSupport, Mismatch, common
from .device import Device
from .params import LayerParams, Limits, Workspace
from .requirements import Availability
from .spec import AttentionSpec

AnyBackend = AttentionBackend[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOptions:
    """Options of the parts."""

    decode: Any = None
    prefill: Any = None
    masked: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """Rows of a step that one part computes."""

    part: AnyBackend
    tokens: slice
    """Their query tokens in the batch, padding behind the last row included."""
    keys: slice
    """The step's K and V that belong to them."""
    plan: Any


PhasePlan = tuple[Share, ...]


class PhaseSplit(AttentionBackend[PhasePlan]):
    """Gives the rows of a step to other backends, its parts, over one cache.

    A step's mask that says nothing of its decodes sends all rows behind them to the masked part; any other mask, the
    whole step.
    """

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._parts = dict(self.make_parts())

    @abstractmethod
    def make_parts(self) -> Mapping[str, AnyBackend]:
        """The parts by name: ``prefill``, and ``decode`` and ``masked`` where such rows go elsewhere."""

    def bind(self, layer: LayerParams) -> None:
        for part in self._parts.values():
            part.bind(layer)

    def plan(self, batch: AttentionBatch) -> PhasePlan:
        return tuple(self._share(batch, *share) for share in self._shares(batch))

    def _share(self, batch: AttentionBatch, name: str, first: int, end: int) -> Share:
        start, stop = batch.tokens(first, end)
        tokens = keys = slice(start, stop if end < batch.num_reqs else None)
        if batch.key_start_loc is not None:
            keys = slice(int(batch.key_start_loc[first]), int(batch.key_start_loc[end]))
        part = self._parts[name]
        return Share(part=part, tokens=tokens, keys=keys, plan=part.plan(batch.rows(first, end)))

    def _shares(self, batch: AttentionBatch) -> Iterator[tuple[str, int, int]]:
        """(part, first row, end). A graph of single tokens is the decodes', whether or not they have context."""
        split = "decode" in self._parts
        if batch.graph is not None:
            yield ("decode" if split else "prefill"), 0, batch.num_reqs
            return
        decodes, rows = batch.counts.decodes if split else 0, batch.num_reqs
        mask = batch.mask if "masked" in self._parts else None
        if mask is not None and mask.rows(0, decodes, slice(*batch.tokens(0, decodes))) is not None:
            yield "masked", 0, rows
            return
        if decodes:
            yield "decode", 0, decodes
        if decodes < rows:
            yield ("prefill" if mask is None else "masked"), decodes, rows

    def prepare(self, plan: PhasePlan) -> None:
        for share in plan:
            share.part.prepare(share.plan)

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
        for share in plan:
            rows, keys = share.tokens, share.keys
            share.part.forward(
                layer,
                query[rows],
                key=None if key is None else key[keys],
                value=None if value is None else value[keys],
                kv_cache=kv_cache,
                plan=share.plan,
                out=out[rows],
                lse_out=None if lse_out is None else lse_out[rows],
            )


class PhaseComposite(PhaseSplit):
    """Made by `by_phase`. Offers what all parts offer, and needs what any needs; masks are the masked part's alone."""

    decode_cls: ClassVar[type[AnyBackend]]
    prefill_cls: ClassVar[type[AnyBackend]]
    masked_cls: ClassVar[type[AnyBackend] | None] = None
    Options: ClassVar[type] = PhaseOptions

    @classmethod
    def parts(cls) -> dict[str, type[AnyBackend]]:
        """The classes, by the name of their options."""
        found = {"decode": cls.decode_cls, "prefill": cls.prefill_cls}
        return found if cls.masked_cls is None else {**found, "masked": cls.masked_cls}

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        offered = common(cls.decode_cls.capabilities(device), cls.prefill_cls.capabilities(device))
        if cls.masked_cls is not None:
            masked = cls.masked_cls.capabilities(device)
            offered = replace(common(offered, masked), masks=masked.masks)
        return replace(offered, graph=min(offered.graph, GraphSupport.SINGLE_TOKEN))

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return tuple(m for name, part in cls.parts().items() for m in part.refusals(cls._spec(name, spec), device))

    @classmethod
    def availability(cls) -> Availability:
        return Availability(reasons=tuple(r for part in cls.parts().values() for r in part.availability().reasons))

    @classmethod
    def _spec(cls, name: str, spec: AttentionSpec) -> AttentionSpec:
        """The layer as a part sees it."""
        return spec if cls.masked_cls is None or name == "masked" else replace(spec, masks=frozenset())

    def make_parts(self) -> Mapping[str, AnyBackend]:
        return {
            name: part(
                self._spec(name, self.spec), self.device, self.limits, self.workspace, getattr(self.options, name)
            )
            for name, part in self.parts().items()
        }


def by_phase(
    decode: type[AnyBackend], prefill: type[AnyBackend], masked: type[AnyBackend] | None = None
) -> type[AnyBackend]:
    """A backend that sends decode rows to `decode`, the others to `prefill`, and those with extra masks to `masked`."""
    parts = [decode, prefill] if masked is None else [decode, prefill, masked]
    return PhaseComposite.derive(
        "And".join(part.__name__ for part in parts),
        decode_cls=decode,
        prefill_cls=prefill,
        masked_cls=masked,
        requires=sum((part.requires for part in parts), ()),
    )
