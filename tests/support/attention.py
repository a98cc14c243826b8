"""Running a backend by itself: a cache with shuffled blocks, a batch from lists of lengths, and the uniform probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headstock.core.attention import (
    LAYOUTS,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Device,
    KVCache,
    LayerParams,
    Limits,
    Workspace,
    count_rows,
)
from headstock.core.attention.cache import slots_of, storage_dtype

CPU = Device(platform="cpu", name="test CPU", arch="x86_64")
LIMITS = Limits(max_num_reqs=64, max_num_tokens=8192, max_model_len=8192, max_blocks_per_req=8192)


def ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def make_batch(
    query_lens: Sequence[int], seq_lens: Sequence[int], block_table: Tensor | None, block_size: int = 16
) -> AttentionBatch:
    """A batch of these rows; each row's queries are the last of its tokens."""
    starts = ints([0, *accumulate(query_lens)])
    lengths = ints(seq_lens)
    slots = None
    if block_table is not None:
        rows = [
            slots_of(block_table[r], n, block_size)[n - q :] if n >= q else torch.full((q,), -1)
            for r, (q, n) in enumerate(zip(query_lens, seq_lens, strict=True))
        ]
        slots = torch.cat(rows).long()
    return AttentionBatch(
        num_reqs=len(lengths),
        num_tokens=int(starts[-1]),
        counts=count_rows(starts[1:] - starts[:-1], lengths, 1),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        max_query_len=max(query_lens, default=0),
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=lengths,
        max_seq_len=max(seq_lens, default=0),
        block_table=block_table,
        slot_mapping=slots,
    )


@dataclass(kw_only=True)
class Scene:
    """Sequences whose K and V lie in a paged cache, in blocks of shuffled order; unowned slots hold `poison`."""

    spec: AttentionSpec
    seq_lens: Sequence[int]
    layout: str = "nhd"
    poison: float = float("nan")
    seed: int = 0
    keys: list[Tensor] | None = None
    values: list[Tensor] | None = None
    layer: LayerParams | None = None
    spare_blocks: int = 3

    def __post_init__(self) -> None:
        spec, rng = self.spec, torch.Generator().manual_seed(self.seed)
        dtype = getattr(torch, spec.dtype)

        def random(size: int) -> list[Tensor]:
            shape = (spec.num_kv_heads, size)
            return [torch.randn(n, *shape, generator=rng, dtype=torch.float64).to(dtype) for n in self.seq_lens]

        self.keys = random(spec.head_size) if self.keys is None else self.keys
        self.values = random(spec.head_size_v) if self.values is None else self.values
        self.layer = self.layer or LayerParams(name="layer", spec=spec)
        counts = [-(-n // spec.block_size) for n in self.seq_lens]
        total = sum(counts) + self.spare_blocks
        free = iter((torch.randperm(total, generator=rng) + 1).tolist())
        self.block_table = torch.zeros(len(counts), max([*counts, 1]), dtype=torch.int32)
        for row, count in enumerate(counts):
            self.block_table[row, :count] = ints([next(free) for _ in range(count)])
        layout = LAYOUTS[self.layout]
        planes = {n: torch.zeros(p.shape, dtype=p.dtype) for n, p in layout.planes(spec, total + 1).items()}
        if storage_dtype(spec).is_floating_point:
            for plane in planes.values():
                plane[1:] = self.poison if plane.element_size() > 1 else float("nan")
        self.cache = KVCache(layout=layout, planes=planes, block_size=spec.block_size)

    def write(self, backend: AttentionBackend[Any], row: int, first: int, end: int) -> None:
        """Let the backend write keys first ≤ p < end of a sequence."""
        assert self.keys is not None
        assert self.values is not None
        assert self.layer is not None
        slots = slots_of(self.block_table[row], end, self.spec.block_size)[first:]
        backend.write_kv(self.layer, self.keys[row][first:end], self.values[row][first:end], self.cache, slots)

    def attend(self, backend: AttentionBackend[Any], queries: Sequence[Tensor], lse: bool = False) -> Any:
        """One step: each sequence's last tokens, one a query, are new. Write, then attend. out, or (out, LSE)."""
        assert self.keys is not None
        assert self.values is not None
        assert self.layer is not None
        for row, (query, n) in enumerate(zip(queries, self.seq_lens, strict=True)):
            self.write(backend, row, 0, max(0, n - len(query)))
        batch = make_batch([len(q) for q in queries], self.seq_lens, self.block_table, self.spec.block_size)
        new_keys = torch.cat([k[max(0, len(k) - len(q)) :] for k, q in zip(self.keys, queries, strict=True)])
        new_values = torch.cat([v[max(0, len(v) - len(q)) :] for v, q in zip(self.values, queries, strict=True)])
        if all(n >= len(q) for n, q in zip(self.seq_lens, queries, strict=True)):
            backend.write_kv(self.layer, new_keys, new_values, self.cache, batch.slot_mapping)
        else:
            for row, n in enumerate(self.seq_lens):
                self.write(backend, row, 0, n)
            new_keys = new_values = None
        return run(backend, self.layer, torch.cat(list(queries)), batch, self.cache, new_keys, new_values, lse)


def run(
    backend: AttentionBackend[Any],
    layer: LayerParams,
    query: Tensor,
    batch: AttentionBatch,
    cache: KVCache | None,
    key: Tensor | None,
    value: Tensor | None,
    lse: bool = False,
) -> Any:
    """plan, prepare and forward; the output is NaN beforehand, so that what was not written shows."""
    spec = backend.spec
    out = torch.full((len(query), spec.num_heads, spec.head_size_v), float("nan"), dtype=query.dtype)
    lse_out = torch.full((len(query), spec.num_heads), float("nan")) if lse else None
    plan = backend.plan(batch)
    backend.prepare(plan)
    backend.forward(layer, query, key=key, value=value, kv_cache=cache, plan=plan, out=out, lse_out=lse_out)
    return (out, lse_out) if lse else out


def make(cls: type[AttentionBackend[Any]], spec: AttentionSpec) -> AttentionBackend[Any]:
    return cls(spec, CPU, LIMITS, Workspace("cpu"))


def uniform_spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1, "head_size": 64, "dtype": "float32", "block_size": 4}
    return AttentionSpec(**{**base, **changes})


def uniform_probe(spec: AttentionSpec, lengths: Sequence[int], first: float = 0.0, **scene: Any) -> Scene:
    """Sequences with v_j = first + j in every channel: for queries of 0, an output is the mean position attended to."""
    dtype = getattr(torch, spec.dtype)
    shape = (spec.num_kv_heads, spec.head_size_v)
    values = [
        (torch.arange(n, dtype=torch.float64) + first)[:, None, None].expand(n, *shape).to(dtype) for n in lengths
    ]
    return Scene(spec=spec, seq_lens=lengths, values=values, **scene)


def zeros(spec: AttentionSpec, count: int) -> Tensor:
    return torch.zeros(count, spec.num_heads, spec.head_size, dtype=getattr(torch, spec.dtype))


def chunked(cls: type[AttentionBackend[Any]], scene: Scene, chunks: Sequence[int], queries: Tensor) -> Tensor:
    """A single sequence computed chunk by chunk over one cache: the outputs of all chunks."""
    assert scene.keys is not None
    assert scene.values is not None
    (length,) = scene.seq_lens
    assert sum(chunks) == length
    backend = make(cls, scene.spec)
    outs: list[Tensor] = []
    for size, end in zip(chunks, accumulate(chunks), strict=True):
        part = replace_length(scene, end)
        outs.append(part.attend(backend, [queries[end - size : end]]))
    return torch.cat(outs)


def replace_length(scene: Scene, end: int) -> Scene:
    """The same cache and blocks with the sequence cut at `end`."""
    assert scene.keys is not None
    assert scene.values is not None
    part = replace(scene, seq_lens=[end], keys=[scene.keys[0][:end]], values=[scene.values[0][:end]])
    part.block_table, part.cache = scene.block_table, scene.cache
    return part
