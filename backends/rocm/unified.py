"""`AiterUnified`: AITER's unified attention, one Triton kernel for every row of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.attention import (
    ANY,
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
    Sizes,
    Workspace,
    kv_format,
    one_of,
)
from .._aiter_ops import AiterOptions, bind, check_op, found, needed, unsupported
from ..libraries import stored_as_computed

OP = "unified_attention"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A step as the kernel takes it; the tensors are the batch's own."""

    starts: Tensor
    """int32 (R+1,): offsets of the rows' query tokens."""
    lengths: Tensor
    """int32 (R,): keys of each row."""
    table: Tensor
    """int32 (R, width): blocks of each row."""
    tokens: int
    """Query tokens that belong to a row."""
    max_query_len: int
    max_key_len: int
    keyless: Tensor | None
    """bool (tokens,): queries that see no key; None where there are none."""


class AiterUnified(AttentionBackend[Plan]):
    """AITER's unified attention over paged K and V, prompts and decodes in one launch.

    Causal only. A window there counts the current key, which the function adds itself, and its ALiBi is measured from
    the context's end: the softmax is the same, but a sink beside it would not be, so the two together are refused. A
    decode takes a block as a tile, whose size has to be a power of two. Releases differ in whether a tile is masked
    before V is read, so what lies behind a row's last key has to be finite. A query without a key it divides by 0.
    It gives no LSE.
    """

    requires = (needed(OP),)
    Options = AiterOptions
    op: ClassVar[str] = OP

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if unsupported(device, OP):
            return Capabilities()
        return Capabilities(
            dtypes=frozenset({"bfloat16", "float16"}),
            kv_formats=frozenset({"bf16", "fp16", eight_bits(device)}),
            kv_scales=frozenset({"tensor"}),
            head_sizes=Sizes(low=32, high=256, multiple_of=8),
            group_sizes=ANY,
            block_sizes=one_of(16, 32, 64, 128, 256),
            kinds=frozenset({"decoder"}),
            kv_sources=frozenset({"cache"}),
            causal=frozenset({True}),
            windows=frozenset({"left"}),
            any_scale=True,
            softcap=True,
            alibi=True,
            sinks=True,
            layouts=("nhd",),
            graph=GraphSupport.SINGLE_TOKEN,  # the first of several queries of a padded row would have no key
            padded_seq_len=1,
            needs_zeroed_cache=True,
            max_cache_elements=2**62,
        )

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        refused = () if kv_format(spec.kv_format).scaled else stored_as_computed(spec)
        return refused + shifted_alibi(spec)

    @classmethod
    def availability(cls) -> Availability:
        return found(OP)

    @classmethod
    def ops(cls, spec: AttentionSpec, device: Device, options: AiterOptions) -> tuple[str, ...]:
        return (OP,)

    @classmethod
    def check_op(cls, name: str, target: str) -> None:
        check_op(name, target)

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._attend = bind(OP, self.options)
        left = spec.window[0] if spec.window else -1
        self._fixed = {
            "softmax_scale": spec.scale,
            "causal": True,
            "window_size": (left, 0 if left >= 0 else -1),
            "softcap": spec.softcap or 0.0,
            "q_descale": None,
        }

    def plan(self, batch: AttentionBatch) -> Plan:
        if batch.block_table is None:
            raise ValueError("unified attention reads a paged cache, and the batch has no block table")
        return Plan(
            starts=batch.query_start_loc,
            lengths=batch.seq_lens,
            table=batch.block_table,
            tokens=int(batch.query_start_loc_cpu[-1]),
            max_query_len=batch.max_query_len,
            max_key_len=max(batch.max_seq_len, 1),
            keyless=_keyless(batch),
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
        if kv_cache is None:
            raise ValueError("unified attention reads a paged cache, and none was given")
        if plan.tokens == 0:
            return
        self._attend(
            q=query[: plan.tokens],
            k=kv_cache.k,
            v=kv_cache.v,
            out=out[: plan.tokens],
            cu_seqlens_q=plan.starts,
            max_seqlen_q=plan.max_query_len,
            seqused_k=plan.lengths,
            max_seqlen_k=plan.max_key_len,
            block_table=plan.table,
            k_descale=layer.k_scale,
            v_descale=layer.v_scale,
            alibi_slopes=layer.alibi_slopes,
            sinks=layer.sinks,
            **self._fixed,
        )
        if plan.keyless is not None:
            out[: plan.tokens].masked_fill_(plan.keyless[:, None, None], 0)


def _keyless(batch: AttentionBatch) -> Tensor | None:
    """bool (T,): queries of rows with more queries than keys that see none; None where the host knows of no such row.

    Engines have no such rows.
    """
    counts, lengths = batch.query_start_loc_cpu.diff(), batch.seq_lens_cpu
    rows = len(counts)
    if batch.max_query_len == 1 or (lengths is not None and bool((counts <= lengths[:rows]).all())):
        return None
    starts, tokens = batch.query_start_loc.long(), int(batch.query_start_loc_cpu[-1])
    first = torch.repeat_interleave(starts[1:] - batch.seq_lens[:rows], starts.diff(), output_size=tokens)
    return torch.arange(tokens, device=starts.device) < first


def eight_bits(device: Device) -> str:
    """The KV format of 8-bit floats that the card computes with."""
    return "fp8_e4m3fnuz" if device.arch == "gfx942" else "fp8_e4m3"


def shifted_alibi(spec: AttentionSpec) -> tuple[Mismatch, ...]:
    """The objection of kernels that do not measure ALiBi from the query: the softmax is the same, beside a sink not."""
    if not (spec.alibi and spec.sinks):
        return ()
    return (Mismatch(field="sinks", asked="with ALiBi", offered="without: its logits are shifted"),)
