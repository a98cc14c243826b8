"""Attention by its definition, in float64: what every backend is held against.

Each query row gathers just the keys it may see and is computed alone, so there is no masking to get wrong: a key that
is not
seen is not read. Slow on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .batch import AttentionBatch, AttentionMask, host_ints
from .cache import KVCache, slots_of
from .params import LayerParams
from .spec import AttentionSpec


def attend_row(
    query: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec, *, bias: Tensor | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One query row over the n keys it sees, all float64.

    query (Hq, D), keys (n, Hkv, D), values (n, Hkv, Dv), bias (Hq, n) added after the softcap, sinks (Hq,).
    Returns out (Hq, Dv) and the natural log-sum-exp (Hq,), which includes the sink. No key: 0, and -inf or the sink.
    """
    heads, group = spec.num_heads, spec.group_size
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    logits = torch.einsum("hd,nhd->hn", query, keys) * spec.scale
    if spec.softcap is not None:
        logits = spec.softcap * torch.tanh(logits / spec.softcap)
    if bias is not None:
        logits = logits + bias
    everything = logits if sinks is None else torch.cat([logits, sinks[:, None]], dim=1)
    if everything.shape[1] == 0:
        return query.new_zeros(heads, values.shape[2]), query.new_full((heads,), float("-inf"))
    lse = torch.logsumexp(everything, dim=1)
    return torch.einsum("hn,nhd->hd", torch.exp(logits - lse[:, None]), values), lse


def visible(position: int, num_keys: int, spec: AttentionSpec) -> range:
    """Keys that a query at `position` sees by causality and window; positions count keys, so they may be negative."""
    first, last = 0, num_keys - 1
    if spec.causal:
        last = min(last, position)
    if spec.window is not None:
        left, right = spec.window
        first = max(first, position - left) if left >= 0 else first
        last = min(last, position + right) if right >= 0 else last
    return range(first, max(first, last + 1))


def masked(mask: AttentionMask, row: int, tokens: slice, num_keys: int, spec: AttentionSpec) -> list[Sequence[int]]:
    """Keys that each query of a row sees under an extra mask; `tokens` are the row's in the batch."""
    spans = list[tuple[int, int]]()
    if mask.kind == "spans":
        named = zip(*(host_ints(mask.data[:, column]) for column in range(3)), strict=True)
        spans = [(first, end) for request, first, end in named if request == row]
    count, seen = tokens.stop - tokens.start, list[Sequence[int]]()
    for query in range(count):
        position = num_keys - count + query
        keys = set(visible(position, num_keys, spec))
        if mask.kind == "tree":
            ancestors = mask.data[tokens.start + query].nonzero().flatten()
            draft = range(num_keys - count, position)
            keys -= set(draft) - {num_keys - count + i for i in host_ints(ancestors)}
        for first, end in spans:
            if first <= position < end:
                keys |= set(range(first, min(end, num_keys)))
        seen.append(sorted(keys))
    return seen


def attend_sequence(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spec: AttentionSpec,
    *,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sees: Sequence[Sequence[int]] | None = None,
) -> tuple[Tensor, Tensor]:
    """One sequence: query (t, Hq, D) at its end, keys (n, Hkv, D), values (n, Hkv, Dv). Gives float64 out and LSE.

    `sees` are the keys of each query where causality and window do not tell them.
    """
    query, keys, values = query.double(), keys.double(), values.double()
    sinks = None if sinks is None else sinks.double()
    out = query.new_zeros(len(query), spec.num_heads, spec.head_size_v)
    lse = query.new_zeros(len(query), spec.num_heads)
    for row in range(len(query)):
        position = len(keys) - len(query) + row
        own = visible(position, len(keys), spec) if sees is None else sees[row]
        seen = torch.tensor(list(own), dtype=torch.long, device=keys.device)
        bias = None
        if alibi_slopes is not None:
            bias = -alibi_slopes.double()[:, None] * (position - seen).abs()
        out[row], lse[row] = attend_row(query[row], keys[seen], values[seen], spec, bias=bias, sinks=sinks)
    return out, lse


def attend_batch(
    layer: LayerParams,
    query: Tensor,
    batch: AttentionBatch,
    *,
    key: Tensor | None,
    value: Tensor | None,
    kv_cache: KVCache | None,
) -> tuple[Tensor, Tensor]:
    """A whole batch, from the cache or from ragged `key` and `value`: float64 out (T, Hq, Dv) and LSE (T, Hq)."""
    out = query.new_zeros(*query.shape[:2], layer.spec.head_size_v, dtype=torch.float64)
    lse = query.new_zeros(query.shape[:2], dtype=torch.float64)
    starts = host_ints(batch.query_start_loc)
    lengths = host_ints(batch.seq_lens)
    for row in range(batch.num_reqs):
        rows = slice(starts[row], starts[row + 1])
        if kv_cache is not None and batch.block_table is not None:
            slots = slots_of(batch.block_table[row], lengths[row], kv_cache.block_size)
            keys, values = kv_cache.layout.gather(kv_cache, layer, slots, torch.float64)
        else:
            keys, values = _ragged_rows(row, batch, key, value)
        out[rows], lse[rows] = attend_sequence(
            query[rows],
            keys,
            values,
            layer.spec,
            sinks=layer.sinks,
            alibi_slopes=layer.alibi_slopes,
            sees=None if batch.mask is None else masked(batch.mask, row, rows, lengths[row], layer.spec),
        )
    return out, lse


def _ragged_rows(row: int, batch: AttentionBatch, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
    if key is None or value is None:
        raise ValueError("a batch without a cache needs key and value")
    offsets = batch.query_start_loc if batch.key_start_loc is None else batch.key_start_loc
    first, end = int(offsets[row]), int(offsets[row + 1])
    return key[first:end], value[first:end]
