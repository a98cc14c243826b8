"""What the three generations share: one call for all rows of a step, over pages or over the step's own K and V."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...core.attention import (
    ANY,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    Device,
    KVCache,
    LayerParams,
    Mismatch,
    Sizes,
)
from ..libraries import has_versions, stored_as_computed

HALVES = frozenset({"bfloat16", "float16"})
HEAD_SIZES = Sizes(low=8, high=256, multiple_of=8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A step as the library takes it."""

    starts: Tensor
    """int32 (R+1,): offsets of the rows' query tokens."""
    lengths: Tensor
    """int32 (R,): keys of each row."""
    key_starts: Tensor | None
    """int32 (R+1,): offsets of the rows' keys, where the library wants them."""
    table: Tensor | None
    """int32 (R, width): pages of each row; None where K and V are the step's own."""
    tokens: int
    """Query tokens that belong to a row; what the library returns for others was never computed."""
    max_query_len: int
    max_key_len: int


class FlashAttention(AttentionBackend[Plan]):
    """Adapter without a library: says what is common to all, and puts their results into the contract's terms."""

    @classmethod
    def fits(cls, device: Device, generations: frozenset[int]) -> bool:
        """Whether the card is of one of these major compute capabilities, with a version that the adapter knows."""
        capability = device.capability
        return (
            device.platform == "cuda"
            and capability is not None
            and capability[0] in generations
            and has_versions(device, cls.requires)
        )

    @classmethod
    def offers(cls, **others: Any) -> Capabilities:
        """What every generation does, with these fields instead."""
        fields: Mapping[str, Any] = {
            "dtypes": HALVES,
            "kv_formats": frozenset({"bf16", "fp16"}),
            "head_sizes": HEAD_SIZES,
            "group_sizes": ANY,
            "kinds": frozenset({"decoder", "encoder", "cross"}),
            "kv_sources": frozenset({"cache", "ragged"}),
            "causal": frozenset({True, False}),
            "windows": frozenset({"left", "right"}),
            "any_scale": True,
            "softcap": True,
            "lse": True,
            "layouts": ("nhd",),
            "zero_length_rows": True,
            "max_cache_elements": 2**62,
        }
        return Capabilities(**{**fields, **others})

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        return stored_as_computed(spec)

    def plan(self, batch: AttentionBatch) -> Plan:
        ragged = self.spec.kv_source == "ragged"
        own = batch.query_start_loc if batch.key_start_loc is None else batch.key_start_loc
        return Plan(
            starts=batch.query_start_loc,
            lengths=batch.seq_lens,
            key_starts=own if ragged else None,
            table=None if ragged else batch.block_table,
            tokens=int(batch.query_start_loc_cpu[-1]),
            max_query_len=batch.max_query_len,
            max_key_len=max(batch.max_seq_len, 1),
        )

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
        if plan.tokens == 0:
            return
        keys, values = (key, value) if kv_cache is None else (kv_cache.k, kv_cache.v)
        if keys is None or values is None:
            raise ValueError("neither a cache nor this step's key and value were given")
        rows = slice(0, plan.tokens)
        result, lse = self.call(layer, query[rows], keys, values, plan, lse_out is not None)
        out[rows] = result
        if lse_out is not None and lse is not None:
            lse = lse.masked_fill(lse.isinf(), float("-inf"))  # a row without a key, as each generation marks it
            lse_out[rows] = lse.masked_fill(result[..., 0].isnan(), float("nan"))  # and they mark NaN the same way

    @abstractmethod
    def call(
        self, layer: LayerParams, query: Tensor, key: Tensor, value: Tensor, plan: Plan, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The library's out (T, Hq, D), and its natural LSE as (T, Hq) where that is wanted."""
