"""torch's fused attention over paged K and V: the automatic choice on CPUs where `cpu` does not compile.

`scaled_dot_product_attention` knows neither pages nor ragged batches. So the step is cut into jobs: decode rows of
similar length share one call, every other row has its own. K and V are read where they lie whenever they lie in one
piece (a prompt without context, a run of consecutive blocks), and gathered otherwise. In decode rows the query heads of
a KV head are folded into its query rows, so that K and V are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..core.attention import (
    ANY,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Capabilities,
    Device,
    KVCache,
    LayerParams,
)

LONG = 256
"""Keys from which a decode row has a call of its own: it saves the padding, and the row may be attended in place. That
it has one does not depend on where its blocks lie, so their order changes no bit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """Rows of one call: `rows` sequences with `queries` query tokens and `keys` keys each."""

    tokens: slice | Tensor
    """Their query tokens in the batch."""
    rows: int
    queries: int
    keys: int
    slots: Tensor | None
    """int64 (rows·keys,): where the keys are in the cache."""
    run: slice | None = None
    """The same as one run of slots, where it is one."""
    fresh: slice | None = None
    """The same as rows of this step's `key` and `value`, where those are all."""
    mask: Tensor | None = None
    """bool, broadcasts to (rows, 1, queries, keys): who sees whom; None is everybody."""
    causal: bool = False
    """Instead of a mask, where queries and keys are the same tokens."""
    blind: Tensor | None = None
    """int64: query tokens, counted in the job, that see no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step."""

    jobs: tuple[Job, ...]
    empty: Tensor | None
    """int64: query tokens of rows without any key; their output is 0."""


class SdpaBackend(AttentionBackend[Plan]):
    """`torch.nn.functional.scaled_dot_product_attention` over a paged cache."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return Capabilities(
            dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
            kv_formats=frozenset({"fp64", "fp32", "bf16", "fp16"}),
            head_sizes=ANY,
            head_sizes_v=ANY,
            group_sizes=ANY,
            block_sizes=ANY,
            kinds=frozenset({"decoder", "encoder", "cross"}),
            kv_sources=frozenset({"cache", "ragged"}),
            causal=frozenset({True, False}),
            windows=frozenset({"left", "right"}),
            any_scale=True,
            layouts=("nhd", "hnd"),
            zero_length_rows=True,
            exact_seq_lens=True,
            max_cache_elements=2**63 - 1,
        )

    def plan(self, batch: AttentionBatch) -> Plan:
        lengths = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.seq_lens.cpu()
        starts = batch.query_start_loc_cpu
        queries = starts[1:] - starts[:-1]
        paged = batch.block_table is not None
        single = (queries == 1) & (lengths > 0) & paged
        jobs = list(self._decode_jobs(batch, torch.nonzero(single).flatten(), lengths))
        empty: list[Tensor] = []
        for row in torch.nonzero(~single & (queries > 0)).flatten().tolist():
            if lengths[row] > 0:
                jobs.append(self._row_job(batch, row, int(queries[row]), int(lengths[row])))
            else:
                empty.append(torch.arange(int(starts[row]), int(starts[row + 1])))
        return Plan(jobs=tuple(jobs), empty=torch.cat(empty).to(batch.seq_lens.device) if empty else None)

    def _decode_jobs(self, batch: AttentionBatch, rows: Tensor, lengths: Tensor) -> Iterator[Job]:
        """Rows of one query: those of similar length together, long ones alone."""
        ends = lengths[rows].long()
        firsts = torch.tensor([_first_key(self.spec, 1, n) for n in ends.tolist()], dtype=torch.long)
        order = torch.argsort(ends - firsts)
        rows, firsts, ends = rows[order], firsts[order], ends[order]
        counts = (ends - firsts).tolist()
        start = 0
        for i, count in enumerate(counts):
            last = i + 1 == len(counts)
            if count >= LONG:
                yield self._lone_job(batch, int(rows[i]), int(firsts[i]), int(ends[i]))
                start = i + 1
            elif last or counts[i + 1] >= min(LONG, 1.25 * counts[start] + 16):
                yield self._shared_job(batch, rows[start : i + 1], firsts[start : i + 1], ends[start : i + 1])
                start = i + 1

    def _lone_job(self, batch: AttentionBatch, row: int, first: int, end: int) -> Job:
        """A decode row in a call of its own, in place where its blocks are consecutive."""
        token = int(batch.query_start_loc_cpu[row])
        positions = torch.arange(first, end, device=batch.seq_lens.device)[None]
        slots = self._slots(batch, torch.tensor([row], device=batch.seq_lens.device), positions)
        run = self._run(batch, row, first, end)
        return Job(tokens=slice(token, token + 1), rows=1, queries=1, keys=end - first, slots=slots, run=run)

    def _shared_job(self, batch: AttentionBatch, rows: Tensor, firsts: Tensor, ends: Tensor) -> Job:
        """Decode rows in one call, padded to the longest by a row's own last key, which is finite and masked."""
        device = batch.seq_lens.device
        counts = ends - firsts
        width = int(counts.max())
        positions = torch.minimum(firsts[:, None] + torch.arange(width), ends[:, None] - 1).to(device)
        mask = None
        if int(counts.min()) < width:
            mask = (torch.arange(width) < counts[:, None])[:, None, None, :].to(device)
        tokens = batch.query_start_loc_cpu[rows].long().to(device)
        slots = self._slots(batch, rows.to(device), positions)
        return Job(tokens=tokens, rows=len(rows), queries=1, keys=width, slots=slots, mask=mask)

    def _row_job(self, batch: AttentionBatch, row: int, queries: int, length: int) -> Job:
        """One row with its own mask; from this step's K and V where there is no context."""
        device = batch.seq_lens.device
        start, stop = batch.tokens(row, row + 1)
        first = _first_key(self.spec, queries, length)
        fresh = run = slots = None
        if batch.key_start_loc is not None:
            key_start = int(batch.key_start_loc[row])
            fresh = slice(key_start + first, key_start + length)
        elif queries == length:
            fresh = slice(start + first, stop)
        if batch.block_table is not None:
            run = self._run(batch, row, first, length)
            positions = torch.arange(first, length, device=device)[None]
            slots = self._slots(batch, torch.tensor([row], device=device), positions)
        mask, causal, blind = _row_mask(self.spec, queries, first, length)
        return Job(
            tokens=slice(start, stop),
            rows=1,
            queries=queries,
            keys=length - first,
            slots=slots,
            run=run,
            fresh=fresh,
            mask=None if mask is None else mask[None, None].to(device),
            causal=causal,
            blind=None if blind is None else blind.to(device),
        )

    def _slots(self, batch: AttentionBatch, rows: Tensor, positions: Tensor) -> Tensor | None:
        """int64 (rows·keys,) slots of key `positions` (rows, keys)."""
        if batch.block_table is None:
            return None
        size = self.spec.block_size
        blocks = batch.block_table[rows].long().gather(1, positions // size)
        return (blocks * size + positions % size).flatten()

    def _run(self, batch: AttentionBatch, row: int, first: int, end: int) -> slice | None:
        """The slots of keys first ≤ p < end, where the blocks are consecutive. Not asked of a device: it would wait."""
        if batch.block_table is None or batch.block_table.device.type != "cpu":
            return None
        size = self.spec.block_size
        blocks = batch.block_table[row, first // size : (end + size - 1) // size].long()
        if bool((blocks[1:] - blocks[:-1] != 1).any()):
            return None
        start = int(blocks[0]) * size + first % size
        return slice(start, start + end - first)

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
        for job in plan.jobs:
            keys, values = _keys_and_values(job, key, value, kv_cache)
            result = self._attend(job, query[job.tokens], keys.to(query.dtype), values.to(query.dtype))
            if job.blind is not None:
                result[job.blind] = 0
            out[job.tokens] = result

    def _attend(self, job: Job, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(rows·queries, Hq, Dv) for query (rows·queries, Hq, D), keys and values (rows·keys, Hkv, D)."""
        spec = self.spec
        k = keys.view(job.rows, job.keys, spec.num_kv_heads, spec.head_size).transpose(1, 2)
        v = values.view(job.rows, job.keys, spec.num_kv_heads, spec.head_size_v).transpose(1, 2)
        options: dict[str, Any] = {"attn_mask": job.mask, "is_causal": job.causal, "scale": spec.scale}
        if job.mask is None and _hides_nan(query, k):
            seen = torch.ones(job.queries, job.keys, dtype=torch.bool)
            options |= {"attn_mask": seen.tril() if job.causal else seen, "is_causal": False}
        if job.queries == 1:
            q = query.view(job.rows, spec.num_kv_heads, spec.group_size, spec.head_size)
            return scaled_dot_product_attention(q, k, v, **options).reshape(job.rows, spec.num_heads, spec.head_size_v)
        q = query.view(job.rows, job.queries, spec.num_heads, spec.head_size).transpose(1, 2)
        result = scaled_dot_product_attention(q, k, v, **options, enable_gqa=spec.group_size > 1)
        return result.transpose(1, 2).reshape(job.rows * job.queries, spec.num_heads, spec.head_size_v)


def _first_key(spec: AttentionSpec, queries: int, length: int) -> int:
    """First key that any of the last `queries` of `length` tokens sees."""
    if spec.window is None or spec.window[0] < 0:
        return 0
    return min(max(0, length - queries - spec.window[0]), length - 1)


def _row_mask(spec: AttentionSpec, queries: int, first: int, length: int) -> tuple[Tensor | None, bool, Tensor | None]:
    """Mask (queries, keys) or None, whether plain causality says it all, and the queries that see nothing."""
    positions = torch.arange(length - queries, length)[:, None]
    keys = torch.arange(first, length)[None, :]
    left, right = spec.window or (-1, -1)
    if spec.causal and queries == length and not 0 <= left < length - 1:
        return None, True, None
    seen = torch.ones(queries, length - first, dtype=torch.bool)
    if left >= 0:
        seen &= keys >= positions - left
    if right >= 0:
        seen &= keys <= positions + right
    if spec.causal:
        seen &= keys <= positions
    if bool(seen.all()):
        return None, False, None
    blind = torch.nonzero(~seen.any(1)).flatten()
    return seen, False, blind if len(blind) else None


def _hides_nan(query: Tensor, keys: Tensor) -> bool:
    """Whether torch would give 0 instead of NaN: its CPU kernel takes a row of NaN logits for one that sees no key,
    unless there is a mask. For a row to be one, its query or the first of the `keys` (rows, Hkv, n, D) has to be NaN.
    """
    return query.device.type == "cpu" and bool((query.sum() + keys[:, :, 0].sum()).isnan())


def _keys_and_values(
    job: Job, key: Tensor | None, value: Tensor | None, kv_cache: KVCache | None
) -> tuple[Tensor, Tensor]:
    """K (rows·keys, Hkv, D) and V of a job, as views where they lie in one piece."""
    if job.fresh is not None and key is not None and value is not None:
        return key[job.fresh], value[job.fresh]
    if kv_cache is None or job.slots is None:
        raise ValueError("neither a cache nor this step's key and value were given")
    if job.run is not None and kv_cache.layout.name == "nhd":
        return kv_cache.k.flatten(0, 1)[job.run], kv_cache.v.flatten(0, 1)[job.run]
    layout, size = kv_cache.layout, kv_cache.block_size
    return layout.gather_rows(kv_cache.k, job.slots, size), layout.gather_rows(kv_cache.v, job.slots, size)
