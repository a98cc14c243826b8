"""`FlashInfer`: the library flashinfer 0.7 over paged K and V."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.attention import (
    ANY,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Limits,
    Mismatch,
    Requirement,
    Workspace,
    kv_format,
    one_of,
)
from ...core.errors import InvalidInput
from ..libraries import has_versions, stored_as_computed
from .pages import Pages, pages_of
from .wrappers import Wrappers

MIB = 2**20
SINK_BLOCKS, SINK_HEADS = (16, 32, 64), (64, 128)
"""Block and head sizes of the kernels that know sinks."""
LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferOptions:
    """Options of FlashInfer."""

    workspace_mib: int = 128
    """Scratch for partial results of split rows, in MiB; shared by all groups of a stream."""

    def __post_init__(self) -> None:
        if type(self.workspace_mib) is not int or self.workspace_mib < 1:
            raise InvalidInput("workspace_mib", f"must be a number of MiB, at least 1, not {self.workspace_mib!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Rows that one wrapper computes."""

    wrapper: Any
    tokens: slice
    decodes: bool


class FlashInfer(AttentionBackend[tuple[Part, ...]]):
    """FlashInfer 0.7 (Ye et al. 2025, arXiv 2501.01005): decodes through one wrapper, all other rows through another.

    A wrapper is planned once a step, for all layers of the group: scale, softcap and window go into the plan, as does
    the query's dtype, which it takes to be float16 otherwise. Its LSE is of base 2. Its templates drop sinks without a
    word; only the kernels for Blackwell's server cards ("trtllm-gen") apply them, so only there they are offered.
    """

    requires = (Requirement(package="flashinfer-python", versions=">=0.7,<0.8"),)
    Options = FlashInferOptions

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        capability = device.capability
        if device.platform != "cuda" or capability is None or not has_versions(device, cls.requires):
            return Capabilities()
        if not (8, 0) <= capability <= (12, 1):
            return Capabilities()
        blackwell = capability[0] == 10
        return Capabilities(
            dtypes=frozenset({"bfloat16", "float16"}),
            kv_formats=frozenset({"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}),
            kv_scales=frozenset({"tensor"}),
            head_sizes=one_of(64, 128, 256),
            group_sizes=ANY,
            block_sizes=ANY,
            kinds=frozenset({"decoder", "encoder", "cross"}),
            kv_sources=frozenset({"cache"}),
            causal=frozenset({True, False}),
            windows=frozenset({"left"}),
            any_scale=True,
            softcap=True,
            sinks=blackwell,
            lse=True,
            layouts=("hnd", "nhd") if blackwell else ("nhd", "hnd"),
            graph=GraphSupport.SINGLE_TOKEN,
            padded_seq_len=1,
            exact_seq_lens=True,
            needs_zeroed_cache=capability[0] in (9, 10),  # kernels that load pages whole may be chosen there
            max_cache_elements=2**62,
        )

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        found = () if kv_format(spec.kv_format).scaled else stored_as_computed(spec)
        if not spec.sinks:
            return found
        return found + tuple(
            Mismatch(field=name, asked=f"{asked} with sinks", offered=offered)
            for name, asked, offered, fits in (
                ("block_size", spec.block_size, SINK_BLOCKS, spec.block_size in SINK_BLOCKS),
                ("head_size", spec.head_size, SINK_HEADS, spec.head_size in SINK_HEADS),
                ("softcap", spec.softcap, None, spec.softcap is None),
                ("lse", "yes", None, not spec.lse),
                ("causal", "no", True, spec.causal),
                ("kv_format", spec.kv_format, "bf16 or fp16", not kv_format(spec.kv_format).scaled),
            )
            if not fits
        )

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        nbytes, kernels = self.options.workspace_mib * MIB, "auto"
        if spec.sinks:
            kernels = "trtllm-gen"
            # These keep counters in it, which are zero between calls: it can be nobody else's.
            scratch = torch.zeros(nbytes, dtype=torch.uint8, device=device.torch_device)
        else:
            scratch = workspace.get(nbytes)
        self._wrappers = Wrappers(scratch, kernels, limits)
        self._fixed = {
            "num_qo_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "page_size": spec.block_size,
            "sm_scale": spec.scale,
            "window_left": spec.window[0] if spec.window else -1,
            "logits_soft_cap": spec.softcap or 0.0,
            "q_data_type": getattr(torch, spec.dtype),
            "kv_data_type": getattr(torch, kv_format(spec.kv_format).storage),
        }

    def plan(self, batch: AttentionBatch) -> tuple[Part, ...]:
        pages, rows = pages_of(batch, self.spec.block_size), len(batch.seq_lens)
        if batch.graph is not None:
            return (self._decodes(self._wrappers.captured(batch.graph), pages, rows),)
        decodes, parts = batch.counts.decodes, list[Part]()
        if decodes:
            parts.append(self._decodes(self._wrappers.decode(), pages.rows(0, decodes), decodes))
        starts = batch.query_start_loc_cpu
        if decodes < rows and int(starts[-1]) > int(starts[decodes]):
            parts.append(self._others(pages.rows(decodes, rows), starts, decodes))
        return tuple(parts)

    def _decodes(self, wrapper: Any, pages: Pages, rows: int) -> Part:
        wrapper.plan(
            indptr=pages.starts,
            indices=pages.indices,
            last_page_len=pages.last,
            head_dim=self.spec.head_size,
            **self._fixed,
        )
        return Part(wrapper=wrapper, tokens=slice(0, rows), decodes=True)

    def _others(self, pages: Pages, starts: Tensor, first: int) -> Part:
        wrapper, start = self._wrappers.prefill(), int(starts[first])
        wrapper.plan(
            qo_indptr=starts[first:] - start,
            paged_kv_indptr=pages.starts,
            paged_kv_indices=pages.indices,
            paged_kv_last_page_len=pages.last,
            head_dim_qk=self.spec.head_size,
            causal=self.spec.causal,
            **self._fixed,
        )
        return Part(wrapper=wrapper, tokens=slice(start, int(starts[-1])), decodes=False)

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: tuple[Part, ...],
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        if kv_cache is None:
            raise ValueError("FlashInfer attends over a cache, and none was given")
        planes = (kv_cache.k, kv_cache.v)
        if kv_cache.layout.name == "hnd":  # the kernels read the strides of what they are given
            planes = (kv_cache.k.transpose(1, 2), kv_cache.v.transpose(1, 2))
        for part in plan:
            self._run(part, layer, query, planes, out, lse_out)

    def _run(
        self,
        part: Part,
        layer: LayerParams,
        query: Tensor,
        planes: tuple[Tensor, Tensor],
        out: Tensor,
        lse_out: Tensor | None,
    ) -> None:
        own, asked = out[part.tokens], lse_out is not None
        optional: dict[str, Any] = {}
        if layer.k_scale is not None:
            optional |= {"k_scale": layer.k_scale_float, "v_scale": layer.v_scale_float}
        if layer.sinks is not None:
            optional["sinks"] = layer.sinks
        if own.is_contiguous():  # the kernels know no strides of it
            optional["out"] = own
        if asked and not part.decodes:
            optional["lse_base"] = "ln"
        result = part.wrapper.run(query[part.tokens], planes, return_lse=asked, **optional)
        attended, lse = result if asked else (result, None)
        if "out" not in optional:
            own.copy_(attended)
        if lse_out is not None and lse is not None:
            torch.mul(lse, LN2 if part.decodes else 1.0, out=lse_out[part.tokens])
