"""`AttentionBackend`: the class a kernel author writes. The smallest useful one is `capabilities` and `forward`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from torch import Tensor

from ..errors import InvalidInput
from .batch import AttentionBatch
from .cache import KVCache
from .capabilities import Capabilities, Mismatch
from .device import Device
from .params import LayerParams, Limits, Workspace
from .requirements import Availability, Requirement, check_requirements
from .spec import AttentionSpec

API_VERSION = 1
"""Version of this contract. Backends of this version and the one before it are loaded."""

PlanT = TypeVar("PlanT")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """A backend that takes no options."""


class Backend(ABC, Generic[PlanT]):
    """What all kinds of backend share: they say what they can do, and plan a step. Its **name** is that of its entry
    point.

    `AttentionBackend` attends over K and V; backends over recurrent states will stand beside it.
    """

    api_version: ClassVar[int] = API_VERSION
    requires: ClassVar[tuple[Requirement, ...]] = ()
    """Packages without which it cannot run."""
    Options: ClassVar[type] = NoOptions
    """Frozen dataclass of user options; its `__post_init__` raises `InvalidInput`, before any worker starts."""

    @classmethod
    @abstractmethod
    def capabilities(cls, device: Device) -> Capabilities:
        """What it can do on `device`: pure, a function of the value alone, library versions included."""

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        """Combinations that no single field expresses; empty means none."""
        return ()

    @classmethod
    def configurations(cls, spec: AttentionSpec, device: Device, phase: str) -> tuple[Mapping[str, object], ...]:
        """Options worth measuring for layers of `spec` on `device` in a phase, ``"decode"`` or ``"prefill"``; empty,
        where there is nothing to tune.

        Each is a mapping as `parse_options` takes it, and names only what concerns that phase. `headstock tune` holds
        them against the defaults, numerics first, and the fastest is what instances get from then on.
        """
        return ()

    @classmethod
    def availability(cls) -> Availability:
        """Whether it can run on this machine: library there and new enough. Never raises."""
        return check_requirements(cls.requires)

    @classmethod
    def build(cls) -> Path | None:
        """Build here, unless it is there, what it needs to run, such as kernels; the file, or None where it is nothing.

        Asked of what was chosen, before weights are loaded. Raises `BackendError`, which then speaks against it.
        """
        return None

    @classmethod
    def prebuild(cls, folder: Path) -> Path | None:
        """Build the same into `folder`, for other machines."""
        return None

    @classmethod
    def ops(cls, spec: AttentionSpec, device: Device, options: Any) -> tuple[str, ...]:
        """Functions of a kernel library, by name, that it may call for such a layer, and in whose place its option
        `aiter_ops` puts others; empty means none. Pure, as `capabilities`; `options` is an instance of `Options`.
        """
        return ()

    @classmethod
    def check_op(cls, name: str, target: str) -> None:
        """Load ``"package.module:function"``, which is to take the place of the op `name`, and look whether it can.

        Asked of what was chosen, before weights are loaded. Raises `BackendError` with the reason.
        """

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        self.spec = spec
        self.device = device
        self.limits = limits
        self.workspace = workspace
        self.options = self.Options() if options is None else options

    def plan(self, batch: AttentionBatch) -> PlanT:
        """Host work, once a step and attention group. Its tensors keep their addresses from capture to replay."""
        return cast(PlanT, batch)

    def prepare(self, plan: PlanT) -> None:
        """Recordable device work, once a step before the first layer."""

    @classmethod
    def derive(cls, name: str, **attributes: object) -> type[Self]:
        """A subclass with these class attributes: how composites and configured kernels are made."""
        return cast("type[Self]", type(name, (cls,), attributes))

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> Any:
        """`Options` from a user's mapping; raises `InvalidInput` naming an unknown key and the known ones."""
        known = [f.name for f in fields(cls.Options)]
        for key in values:
            if key not in known:
                offer = f"known are {', '.join(known)}" if known else f"{cls.__name__} takes none"
                raise InvalidInput(f"option {key!r}", f"is not known; {offer}")
        return cls.Options(**values)


class AttentionBackend(Backend[PlanT]):
    """Attention over a paged KV cache, for one group of layers with equal spec.

    An instance belongs to one thread and stream, and holds no state at module level: several coexist.
    Conventions every backend keeps, held by the tests:

    - *causal* is aligned bottom-right; a causal window of W attends to W keys, the current one included; not causal,
      |i-j| < W.
    - order: scale, softcap, ALiBi, mask, sink. A sink enters the denominator once, unscaled, per query head.
    - a row without a key gives 0 and LSE -inf (with a sink: 0 and LSE = sink). LSE is natural, (T, Hq), and includes
      the sink.
    - query head h reads KV head h // (Hq // Hkv).
    - what slots hold that no sequence owns, NaN included, never reaches an output; rows of padding come out finite.
    - offsets into the cache are 64-bit.

    A backend puts right inside itself what its library does differently.
    """

    def bind(self, layer: LayerParams) -> None:
        """Once a layer after weights are loaded, and at a swap."""

    def write_kv(self, layer: LayerParams, key: Tensor, value: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        """Write `key` (T, Hkv, D) and `value` (T, Hkv, Dv) into the cache at int64 `slot_mapping` (T,); -1 writes
        nothing.

        Comes before `forward` of the same layer, which never writes: so a block can be hit in the step that computes
        it.
        """
        kv_cache.layout.scatter(kv_cache, layer, key, value, slot_mapping)

    @abstractmethod
    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: PlanT,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        """Fill `out` (T, Hq, Dv), and `lse_out` (T, Hq) float32 where given, for `query` (T, Hq, D).

        `key` and `value` are the step's own rows (T, Hkv, D), None where the cache is shared with another layer; those
        of
        cached layers are in `kv_cache` as well by now. Only the last dimension of a tensor is surely contiguous.
        """
