"""`Data`: the tensors that a `Problem` stands for, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...core.attention import AttentionSpec
from ...core.attention.cache import storage_dtype
from ...core.attention.formats import dequantize, quantize
from .fills import FILLS
from .problem import Problem

SLOPE_OF_LAST = 8.0
"""ALiBi slopes go geometrically from head to head, down to 2^-8. Press et al. 2021."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Inputs of one problem, before anything is put into blocks."""

    queries: Tensor
    """(T, Hq, D), rows one after the other."""
    keys: tuple[Tensor, ...]
    """(n, Hkv, D) a row, holding just what the KV format can store."""
    values: tuple[Tensor, ...]
    """(n, Hkv, Dv) a row."""
    sinks: Tensor | None
    """float32 (Hq,)."""
    slopes: Tensor | None
    """float32 (Hq,)."""
    k_scale: Tensor | None
    """float32 () or (Hkv,)."""
    v_scale: Tensor | None


@lru_cache(maxsize=2048)
def data_of(problem: Problem) -> Data:
    """The data of `problem`. A row's are its own: they do not change with the rows beside it, nor with its blocks."""
    spec = problem.spec
    dtype: torch.dtype = getattr(torch, spec.dtype)
    k_scale, v_scale = scales_of(spec, problem.k_scale), scales_of(spec, problem.v_scale)
    queries: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for index, (num_queries, num_keys) in enumerate(problem.rows):
        rng = torch.Generator().manual_seed(1009 * problem.seed + index)
        q, k, v = FILLS[problem.fill](spec, num_queries, num_keys, rng)
        queries.append(q.to(dtype))
        keys.append(_storable(k, k_scale, spec).to(dtype))
        values.append(_storable(v, v_scale, spec).to(dtype))
    return Data(
        queries=torch.cat(queries),
        keys=tuple(keys),
        values=tuple(values),
        sinks=_sinks(problem) if spec.sinks else None,
        slopes=slopes_of(spec.num_heads) if spec.alibi else None,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def scales_of(spec: AttentionSpec, scale: float) -> Tensor | None:
    """float32 scales of a layer: the one given, or by KV head: that one, half of it, a quarter, that one again…"""
    if spec.kv_scales == "none":
        return None
    if spec.kv_scales == "tensor":
        return torch.tensor(scale)
    return scale * 0.5 ** (torch.arange(spec.num_kv_heads) % 3)


def slopes_of(num_heads: int) -> Tensor:
    """float32 (Hq,) ALiBi slopes."""
    return torch.exp2(-SLOPE_OF_LAST * torch.arange(1, num_heads + 1) / num_heads)


def _sinks(problem: Problem) -> Tensor:
    heads = problem.spec.num_heads
    if problem.sink is not None:
        return torch.full((heads,), problem.sink)
    return torch.randn(heads, generator=torch.Generator().manual_seed(problem.seed))


def _storable(x: Tensor, scale: Tensor | None, spec: AttentionSpec) -> Tensor:
    """`x` as it comes out of the cache; so a backend may attend to the step's own rows or to the cache."""
    return dequantize(quantize(x.to(getattr(torch, spec.dtype)), scale, storage_dtype(spec)), scale, torch.float64)
