"""What q, k and v hold: random numbers, or numbers for which the result is known in closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ...core.attention import AttentionSpec

Fill = Callable[[AttentionSpec, int, int, Generator], tuple[Tensor, Tensor, Tensor]]
"""(spec, queries, keys, generator) → q (queries, Hq, D), k (keys, Hkv, D), v (keys, Hkv, Dv), all float64."""


def normal(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Independent and normal: logits of ±4 or so at the usual scale."""
    k = _normal(keys, spec.num_kv_heads, spec.head_size, rng)
    v = _normal(keys, spec.num_kv_heads, spec.head_size_v, rng)
    return _normal(queries, spec.num_heads, spec.head_size, rng), k, v


def probe(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The uniform probe: q = 0 and v_j = j + 1, so that a query's output is 1 + the mean position it attends to."""
    q, k, v = normal(spec, queries, keys, rng)
    return torch.zeros_like(q), k, torch.arange(1.0, keys + 1, dtype=v.dtype)[:, None, None].expand_as(v)


def heads(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """q = 0 and v = 1 + KV head: an output tells which KV head it came from."""
    q, k, v = normal(spec, queries, keys, rng)
    return torch.zeros_like(q), k, torch.arange(1.0, spec.num_kv_heads + 1, dtype=v.dtype)[None, :, None].expand_as(v)


def first(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The first key's logit is the scale and the others' are 0; v is 1 for the first and 0 for the others."""
    q, k, v = (torch.zeros_like(x) for x in normal(spec, queries, keys, rng))
    q[:, :, 0] = 1
    k[:1, :, 0] = v[:1] = 1
    return q, k, v


def steep(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """q·k is 30, 20, 10, 0, … by key; v is 1 for the first and 0 for the others."""
    q, k, v = first(spec, queries, keys, rng)
    q[:, :, 0] = 10
    k[:, :, 0] = 3 - torch.arange(keys, dtype=k.dtype)[:, None]
    return q, k, v


def huge(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """All logits are 1024, or -1024 in every other query head: no format holds their exponentials. v as in `probe`."""
    q, k, v = probe(spec, queries, keys, rng)
    k = torch.zeros_like(k)
    q[:, :, 0] = 32.0 - 64.0 * (torch.arange(spec.num_heads) % 2)
    k[:, :, 0] = 32.0 / spec.scale
    return q, k, v


def needle(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The key two thirds of the way has logit 80 and v = 1, all others 0 and 0: the output is 1 where it is found."""
    q, k, v = (torch.zeros_like(x) for x in normal(spec, queries, keys, rng))
    place = slice(2 * keys // 3, 2 * keys // 3 + 1)
    q[:, :, 0] = 8.0
    k[place, :, 0] = 10.0 / spec.scale
    v[place] = 1.0
    return q, k, v


def late(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """q = 0, v is 0 for the first quarter of the keys and then 1: a sum that a short mantissa stops counting."""
    q, k, v = normal(spec, queries, keys, rng)
    ones = (torch.arange(keys) >= keys // 4).to(v.dtype)
    return torch.zeros_like(q), k, ones[:, None, None].expand_as(v)


def nan_query(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Normal, but for a NaN in the last query of each row."""
    q, k, v = normal(spec, queries, keys, rng)
    q[-1:] = float("nan")
    return q, k, v


def nan_key(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Normal, but for a NaN in the first key of each row."""
    q, k, v = normal(spec, queries, keys, rng)
    k[:1] = float("nan")
    return q, k, v


def nan_value(spec: AttentionSpec, queries: int, keys: int, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Normal, but for a NaN in the first value of each row."""
    q, k, v = normal(spec, queries, keys, rng)
    v[:1] = float("nan")
    return q, k, v


def _normal(count: int, heads: int, channels: int, rng: Generator) -> Tensor:
    return torch.randn(count, heads, channels, generator=rng, dtype=torch.float64)


_ALL = (normal, probe, heads, first, steep, huge, needle, late, nan_query, nan_key, nan_value)
FILLS: dict[str, Fill] = {f.__name__: f for f in _ALL}
