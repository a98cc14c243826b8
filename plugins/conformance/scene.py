"""`Scene`: a problem laid out in memory, as a step of an engine would find it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from ...core.attention import AttentionBatch, KVCache, KVLayout, LayerParams, count_rows
from ...core.attention.cache import slots_of
from .data import Data, data_of
from .fence import Fenced
from .problem import POISON, Problem

NULL_GARBAGE = 24.0
"""What the null block holds where rows of padding may read it: finite, and wrong for every other row."""
Written = Literal["all", "context", "nothing"]
"""Which tokens' K and V are in the cache: all, those before the step's own, or none."""
SPARE_BLOCKS = 3
"""Blocks that no sequence owns, besides the null block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """Everything that `write_kv`, `plan` and `forward` are given. Its memory is its own: nothing is shared."""

    problem: Problem
    data: Data
    layer: LayerParams
    batch: AttentionBatch
    query: Tensor
    key: Tensor
    """The step's own rows; for ragged K/V, all rows."""
    value: Tensor
    planes: dict[str, Fenced]
    """Planes of the cache; empty without one."""
    cache: KVCache | None


def scene_of(
    problem: Problem,
    layout: KVLayout | None,
    device: str = "cpu",
    *,
    decode_query_len: int = 1,
    padded_seq_len: int = 0,
    written: Written = "all",
) -> Scene:
    """The problem in memory of `device`, K and V `written` by the layout; without a layout there is no cache."""
    plan = _lay_out(problem, layout, decode_query_len, padded_seq_len, written)
    data, spec = plan.data, problem.spec
    planes = {name: plane.copy(device) for name, plane in plan.planes.items()}
    cache = None
    if layout is not None:
        tensors = {name: plane.tensor for name, plane in planes.items()}
        cache = KVCache(layout=layout, planes=tensors, block_size=spec.block_size)
    query, key, value = (_place(x, problem.strided, device) for x in (plan.query, plan.key, plan.value))
    return Scene(
        problem=problem,
        data=data,
        layer=layer_of(problem, device),
        batch=to_device(plan.batch, device),
        query=query,
        key=key,
        value=value,
        planes=planes,
        cache=cache,
    )


def layer_of(problem: Problem, device: str, name: str = "layer") -> LayerParams:
    """The layer's own values."""
    data = data_of(problem)
    k, v = data.k_scale, data.v_scale

    def there(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device, copy=True)

    return LayerParams(
        name=name,
        spec=problem.spec,
        sinks=there(data.sinks),
        alibi_slopes=there(data.slopes),
        k_scale=there(k),
        v_scale=there(v),
        k_scale_float=float(k) if k is not None and k.ndim == 0 else 1.0,
        v_scale_float=float(v) if v is not None and v.ndim == 0 else 1.0,
    )


def to_device(batch: AttentionBatch, device: str) -> AttentionBatch:
    """`batch` with tensors of its own, those that belong there on `device`."""
    host = batch.query_start_loc_cpu.clone()

    def there(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device, copy=True)

    return replace(
        batch,
        query_start_loc_cpu=host,
        query_start_loc=host if device == "cpu" else host.to(device),
        seq_lens=batch.seq_lens.to(device, copy=True),
        seq_lens_cpu=None if batch.seq_lens_cpu is None else batch.seq_lens_cpu.clone(),
        seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound.clone(),
        block_table=there(batch.block_table),
        slot_mapping=there(batch.slot_mapping),
        key_start_loc=there(batch.key_start_loc),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    """The parts of a scene on the host, shared by all that are made of the problem."""

    data: Data
    planes: dict[str, Fenced]
    batch: AttentionBatch
    query: Tensor
    key: Tensor
    value: Tensor


@lru_cache(maxsize=2048)
def _lay_out(
    problem: Problem, layout: KVLayout | None, decode_query_len: int, padded_seq_len: int, written: Written
) -> _Layout:
    data = data_of(problem)
    table = None if layout is None else block_table_of(problem)
    batch = batch_of(problem, table, decode_query_len=decode_query_len, padded_seq_len=padded_seq_len)
    planes: dict[str, Fenced] = {}
    if layout is not None and table is not None:
        planes = _planes(problem, layout, table, written)
    keys, values = fresh_rows(problem, data) if layout is not None else (data.keys, data.values)
    pad = problem.padded_tokens
    return _Layout(
        data=data,
        planes=planes,
        batch=batch,
        query=_padded(data.queries, pad),
        key=_padded(torch.cat(keys), pad if layout is not None else 0),
        value=_padded(torch.cat(values), pad if layout is not None else 0),
    )


def fresh_rows(problem: Problem, data: Data) -> tuple[list[Tensor], list[Tensor]]:
    """K and V of each row's new tokens; a row with more queries than keys has some that are written nowhere."""
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for (queries, length), k, v in zip(problem.rows, data.keys, data.values, strict=True):
        missing = max(0, queries - length)
        for rows, x in ((keys, k), (values, v)):
            rows.append(torch.cat([x.new_zeros(missing, *x.shape[1:]), x[length - queries + missing :]]))
    return keys, values


def block_table_of(problem: Problem) -> Tensor:
    """int32 (rows, width): blocks in the order of `placement`; two columns more than needed name the null block."""
    size = problem.spec.block_size
    counts = [-(-keys // size) for _, keys in problem.rows]
    total = num_blocks(problem)
    if problem.placement == -1:
        order = list(range(1, total))
    elif problem.placement == -2:
        order = list(range(total - 1, 0, -1))
    else:
        rng = torch.Generator().manual_seed(problem.placement)
        order = [int(i) + 1 for i in torch.randperm(total - 1, generator=rng)]
    table = torch.zeros(len(counts) + problem.padded_rows, max([*counts, 1]) + 2, dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor(order[start : start + count], dtype=torch.int32)
        start += count
    return table


def num_blocks(problem: Problem) -> int:
    """Blocks of the cache, the null block and spare ones included."""
    return 1 + sum(-(-keys // problem.spec.block_size) for _, keys in problem.rows) + SPARE_BLOCKS


def batch_of(
    problem: Problem, table: Tensor | None, *, decode_query_len: int = 1, padded_seq_len: int = 0
) -> AttentionBatch:
    """The batch, on the host."""
    pad, each = problem.padded_rows, problem.padded_queries
    queries, lengths = [q for q, _ in problem.rows], [k for _, k in problem.rows]
    starts = _ints([0, *accumulate([*queries, *[each] * pad])])
    seq_lens = _ints([*lengths, *[padded_seq_len] * pad])
    slots = keys = None
    if table is None:
        keys = _ints([0, *accumulate([*lengths, *[0] * pad])])
    else:
        slots = torch.cat([slots_to_write(problem, table), torch.full((problem.padded_tokens,), -1)])
    upper = seq_lens + 5 if problem.loose else seq_lens
    return AttentionBatch(
        num_reqs=len(queries),
        num_tokens=sum(queries),
        counts=count_rows(_ints(queries), _ints(lengths), decode_query_len),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        max_query_len=max([*queries, each if pad else 0]),
        seq_lens=seq_lens,
        seq_lens_cpu=None if problem.loose else seq_lens,
        seq_lens_cpu_upper_bound=upper,
        max_seq_len=int(upper.max()) if len(upper) else 0,
        block_table=table,
        slot_mapping=slots,
        key_start_loc=keys,
        max_key_len=0 if keys is None else max([*lengths, 0]),
    )


def slots_to_write(problem: Problem, table: Tensor) -> Tensor:
    """int64 (T,): slot of each real query token; -1 where a row has fewer keys than queries."""
    size = problem.spec.block_size
    rows = [torch.zeros(0, dtype=torch.long)]
    for row, (queries, keys) in enumerate(problem.rows):
        missing = max(0, queries - keys)
        rows.append(torch.full((missing,), -1))
        rows.append(slots_of(table[row], keys, size)[keys - queries + missing :])
    return torch.cat(rows)


def _planes(problem: Problem, layout: KVLayout, table: Tensor, written: Written) -> dict[str, Fenced]:
    """The cache: poison everywhere, then the null block, then what the sequences own."""
    spec, data = problem.spec, data_of(problem)
    poison = POISON[problem.poison]
    shapes = layout.planes(spec, num_blocks(problem))
    planes = {n: Fenced.around(p.shape, p.dtype, strides=p.strides, fill=poison) for n, p in shapes.items()}
    cache = KVCache(layout=layout, planes={n: p.tensor for n, p in planes.items()}, block_size=spec.block_size)
    ends = [{"all": n, "context": max(0, n - q), "nothing": 0}[written] for q, n in problem.rows]
    slots = [slots_of(table[row], end, spec.block_size) for row, end in enumerate(ends)]
    keys, values = ([x[:end] for x, end in zip(rows, ends, strict=True)] for rows in (data.keys, data.values))
    if problem.padded_rows:
        slots.append(torch.arange(spec.block_size))
        for rows, x in ((keys, data.keys[0]), (values, data.values[0])):
            rows.append(torch.full((spec.block_size, *x.shape[1:]), NULL_GARBAGE, dtype=x.dtype))
    layout.scatter(cache, layer_of(problem, "cpu"), torch.cat(keys), torch.cat(values), torch.cat(slots))
    for plane in planes.values():
        plane.seal()
    return planes


def _padded(x: Tensor, count: int) -> Tensor:
    """`x` with `count` rows of padding behind it, which hold numbers as real tokens' would."""
    return torch.cat([x, torch.ones(count, *x.shape[1:], dtype=x.dtype)]) if count else x


def _place(x: Tensor, strided: bool, device: str) -> Tensor:
    """`x` in the middle of NaN; strided, as a part of a wider tensor, like the output of a fused projection."""
    extra = x.shape[1] if strided else 0
    room = torch.full((len(x) + 2, x.shape[1] + 2 * extra, x.shape[2]), float("nan"), dtype=x.dtype, device=device)
    place = room[1 : len(x) + 1, extra : extra + x.shape[1]]
    place.copy_(x)
    return place


def _ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
