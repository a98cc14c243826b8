"""`FlexAttention`: attention whose mask is a function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from ...core.attention import (
    ANY,
    KV_FORMATS,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    Device,
    KVCache,
    LayerParams,
    Limits,
    Requirement,
    Workspace,
)
from .jobs import Job, jobs

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step."""

    jobs: tuple[Job, ...]
    empty: Tensor | None
    """int64: query tokens of rows without any key; their output is 0."""


class FlexAttention(AttentionBackend[Plan]):
    """torch's flex_attention (Dong et al. 2024, arXiv 2412.05496), which carries `spans` and `tree` masks.

    The function knows no pages: K and V of a call are gathered, at every layer. Block masks are made once a step. It
    computes whole blocks, so what the mask hides weighs 0 but is multiplied: rows share no call unless each has one
    query, and padding repeats a row's own key. Sinks are applied to the result by its LSE. On CPUs it runs as it is,
    with all logits of a call in memory; elsewhere it is compiled.
    """

    requires = (Requirement(package="torch", versions=">=2.9"),)

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if device.platform not in ("cpu", "cuda", "rocm", "xpu"):
            return Capabilities()
        halves = frozenset({"float32", "bfloat16", "float16"})
        return Capabilities(
            dtypes=halves | {"float64"} if device.platform == "cpu" else halves,
            kv_formats=frozenset(KV_FORMATS),
            kv_scales=frozenset({"tensor", "head"}),
            head_sizes=ANY,
            head_sizes_v=ANY,
            group_sizes=ANY,
            block_sizes=ANY,
            kinds=frozenset({"decoder", "encoder", "cross"}),
            kv_sources=frozenset({"cache", "ragged"}),
            causal=frozenset({True, False}),
            windows=frozenset({"left", "right"}),
            any_scale=True,
            softcap=True,
            alibi=True,
            sinks=True,
            masks=frozenset({"spans", "tree"}),
            lse=True,
            layouts=("nhd", "hnd"),
            zero_length_rows=True,
            exact_seq_lens=True,
            max_cache_elements=2**62,
        )

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._attend = uncompiled if device.platform == "cpu" else torch.compile(flex_attention)

    def plan(self, batch: AttentionBatch) -> Plan:
        starts, device = batch.query_start_loc_cpu, batch.seq_lens.device
        lengths = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.seq_lens.cpu()
        empty = torch.repeat_interleave(lengths == 0, (starts[1:] - starts[:-1]).long())
        return Plan(
            jobs=tuple(jobs(self.spec, batch)),
            empty=torch.nonzero(empty).flatten().to(device) if bool(empty.any()) else None,
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
        if plan.empty is not None:
            out[plan.empty] = 0
            if lse_out is not None:
                lse_out[plan.empty] = float("-inf") if layer.sinks is None else layer.sinks.float()
        for job in plan.jobs:
            keys, values = _keys_and_values(job, layer, query.dtype, key, value, kv_cache)
            result, lse = self._run(job, layer, query[job.tokens], keys, values, lse_out is not None)
            out[job.tokens] = result
            if lse_out is not None and lse is not None:
                lse_out[job.tokens] = lse.float()

    def _run(
        self, job: Job, layer: LayerParams, query: Tensor, keys: Tensor, values: Tensor, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Out (rows·queries, Hq, Dv) and LSE (rows·queries, Hq) for query (rows·queries, Hq, D) and K and V alike."""
        q, k, v = (x.unflatten(0, (job.rows, -1)).transpose(1, 2) for x in (query, keys, values))
        result, extra = self._attend(
            q,
            k,
            v,
            score_mod=score(self.spec, layer, job),
            block_mask=job.mask,
            scale=self.spec.scale,
            enable_gqa=self.spec.group_size > 1,
            return_aux=AuxRequest(lse=lse or layer.sinks is not None),
        )
        result, sums = result.transpose(1, 2).flatten(0, 1), extra.lse
        if sums is None:
            return result, None
        sums = sums.transpose(1, 2).flatten(0, 1)
        if layer.sinks is not None:
            share = torch.sigmoid(sums - layer.sinks)
            result = (result * share[..., None]).to(result.dtype)
            sums = torch.logaddexp(sums, layer.sinks.to(sums.dtype))
        return result, sums


def score(spec: AttentionSpec, layer: LayerParams, job: Job) -> Score | None:
    """What happens to a scaled logit before the mask: the softcap, then ALiBi."""
    cap, slopes = spec.softcap, layer.alibi_slopes
    if cap is None and slopes is None:
        return None

    def changed(logit: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap is not None:
            logit = cap * torch.tanh(logit / cap)
        if slopes is not None:
            logit = logit - slopes[h] * job.behind(b, q, k).abs()
        return logit

    return changed


def uncompiled(*args: Any, **kwargs: Any) -> Any:
    """`flex_attention` as it is: without a stance it would compile a wrapper of itself anew for each kind of call."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(*args, **kwargs)


def _keys_and_values(
    job: Job,
    layer: LayerParams,
    dtype: torch.dtype,
    key: Tensor | None,
    value: Tensor | None,
    kv_cache: KVCache | None,
) -> tuple[Tensor, Tensor]:
    """K (rows·keys, Hkv, D) and V of a job."""
    if job.fresh is not None and key is not None and value is not None:
        return key[job.fresh].to(dtype), value[job.fresh].to(dtype)
    if kv_cache is None or job.slots is None:
        raise ValueError("neither a cache nor this step's key and value were given")
    return kv_cache.layout.gather(kv_cache, layer, job.slots, dtype)
