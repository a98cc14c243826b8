"""From workloads of FlashInfer-Trace to a recording: each becomes a step of one attention group."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...core.attention import LAYOUTS, AttentionBatch, KVCache, LayerParams, count_rows
from ...core.attention.batch import host_ints
from ...core.errors import HeadstockError, InvalidInput
from ...core.live import Tape, TapedGroup
from ...entrypoints.cli.console import check_writable
from .dataset import Contents, Skipped, Source, Unfit
from .forms import DECODE

BACKEND = "flashinfer-trace"
"""What stands in a recording where the backend's name is else."""
MOST_BLOCKS = 2**28
"""Entries of a block table beyond which it is too large: a gigabyte."""
MOST_TOKENS = 2**31 - 1
VECTORS = {True: ("q", "k_cache", "v_cache"), False: ("q", "k", "v")}
"""Inputs that hold vectors, with pages and without."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A workload as a recording has it."""

    source: Source
    rows: tuple[tuple[int, int], ...]
    """New tokens and keys of each sequence that has new tokens."""
    table: Tensor
    """int32 (R, width): the pages of each."""
    group: TapedGroup

    @property
    def has_vectors(self) -> bool:
        """Whether queries, keys and values are all in files; else they are random."""
        return all(map(self.source.kept, VECTORS[self.source.form.paged]))

    def batch(self) -> AttentionBatch:
        new, keys = zip(*self.rows, strict=True)
        starts = torch.tensor([0, *accumulate(new)], dtype=torch.int32)
        lengths = torch.tensor(keys, dtype=torch.int32)
        return AttentionBatch(
            num_reqs=len(new),
            num_tokens=sum(new),
            counts=count_rows(starts[1:] - starts[:-1], lengths, 1),
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            max_query_len=max(new),
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            seq_lens_cpu_upper_bound=lengths,
            max_seq_len=max(keys),
            block_table=self.table,
        )

    def vectors(self) -> tuple[Tensor, KVCache]:
        """Queries, and a cache with the keys and values. Raises `Unfit`."""
        q, keys, values = (self.source.tensor(name) for name in VECTORS[self.source.form.paged])
        size = self.group.spec.block_size
        if not self.source.form.paged:
            first = _offsets(self.source, "kv_indptr")
            lengths = host_ints(first[1:] - first[:-1])
            keys, values = (_blocks(x, lengths, size) for x in (keys, values))
        return q, KVCache(layout=LAYOUTS["nhd"], planes={"k": keys, "v": values}, block_size=size)


def read_steps(contents: Contents) -> list[Step]:
    """Those that can be; the others are added to what is skipped, with the reason."""
    found: list[Step] = []
    for source in contents.sources:
        try:
            found.append(read_step(source))
        except Unfit as error:
            skipped = Skipped(definition=source.form.name, workload=source.binding.uuid, reasons=(str(error),))
            contents.skipped.append(skipped)
    return found


def read_step(source: Source) -> Step:
    """Raises `Unfit` for what no engine's step looks like."""
    form = source.form
    first = _offsets(source, "kv_indptr")
    if form.kind == DECODE:
        new = [1] * (len(first) - 1)
    else:
        queries = _offsets(source, "qo_indptr")
        if len(queries) != len(first):
            raise Unfit(f"qo_indptr is of {len(queries) - 1} sequences, kv_indptr of {len(first) - 1}")
        new = host_ints(queries[1:] - queries[:-1])
    total = source.binding.axes.get("batch_size" if form.kind == DECODE else "total_q")
    if total != sum(new):
        raise Unfit(f"the sequences have {sum(new)} queries, the workload {total}")
    counts = first[1:] - first[:-1]
    keys = _lengths(source, counts)
    if any(n > k for n, k in zip(new, keys, strict=True)):
        raise Unfit("a sequence has more queries than keys; an engine's new tokens are among the keys")
    live = [row for row, n in enumerate(new) if n]
    if not live:
        raise Unfit("no sequence has a query")
    if max(keys) > MOST_TOKENS:
        raise Unfit(f"a sequence has {max(keys)} keys, more than fit into int32")
    spec = form.spec(source.scale)
    width = -(-max(keys) // spec.block_size)
    if len(new) * width > MOST_BLOCKS:
        raise Unfit(f"a block table of {len(new)} x {width} is too large")
    table = _table(source, first, width) if form.paged else _own_blocks(keys, width, spec.block_size)
    step = Step(
        source=source,
        rows=tuple((new[row], keys[row]) for row in live),
        table=table[live],
        group=TapedGroup(kv_group=0, spec=spec, backend=BACKEND, layers=(form.name,)),
    )
    if step.has_vectors:
        for name in VECTORS[form.paged]:
            source.check(name)
    return step


def write(steps: Iterable[Step], path: str) -> None:
    """Write a new recording at `path`, which is not there if anything goes wrong.

    Raises `InvalidInput` where the file is there already or cannot be made, and `HeadstockError` where it cannot be
    written to its end.
    """
    with _new_tape(path) as tape:
        for step in steps:
            batch = step.batch()
            whole = tape.step((step.group,), (batch,), (step.table,))
            if step.has_vectors:
                query, cache = step.vectors()
                layer = LayerParams(name=step.group.layers[0], spec=step.group.spec)
                whole = whole and tape.attention(layer, query, cache, batch, 0)
            if not whole:
                raise HeadstockError(f"{path} cannot be written to its end")


@contextmanager
def _new_tape(path: str) -> Iterator[Tape]:
    target = os.path.expanduser(path)
    if os.path.exists(target):
        raise InvalidInput("recording", f"{path} is there already; name a new file")
    check_writable("recording", target)
    tape = Tape(target, limit=2**62)
    try:
        yield tape
    except BaseException:
        os.unlink(target)
        raise
    finally:
        tape.close()


def _offsets(source: Source, name: str) -> Tensor:
    """int64 (R+1,): ascending from 0."""
    found = source.tensor(name).long()
    if len(found) < 2 or int(found[0]) != 0 or bool((found[1:] < found[:-1]).any()):
        raise Unfit(f"{name} does not ascend from 0, or is of no sequence")
    return found


def _lengths(source: Source, counts: Tensor) -> list[int]:
    """Keys of each sequence, of so many pages or keys."""
    form = source.form
    if not form.paged:
        total = source.binding.axes.get("total_kv")
        if total != int(counts.sum()):
            raise Unfit(f"the sequences have {int(counts.sum())} keys, the workload {total}")
    if not form.last_page_len:
        return host_ints(counts)
    last = source.tensor("kv_last_page_len").long()
    if len(last) != len(counts):
        raise Unfit(f"kv_last_page_len is of {len(last)} sequences, kv_indptr of {len(counts)}")
    if bool(((counts > 0) & ((last < 1) | (last > form.page_size))).any()):
        raise Unfit(f"kv_last_page_len is not between 1 and {form.page_size}")
    return host_ints(torch.where(counts > 0, (counts - 1) * form.page_size + last, 0))


def _table(source: Source, first: Tensor, width: int) -> Tensor:
    pages, count = source.tensor("kv_indices"), source.binding.axes.get("num_pages")
    if len(pages) != int(first[-1]):
        raise Unfit(f"kv_indices names {len(pages)} pages, kv_indptr means {int(first[-1])}")
    if count is None or (len(pages) and not 0 <= int(pages.min()) <= int(pages.max()) < count):
        raise Unfit(f"kv_indices names pages that are not among the {count} there are")
    owned = torch.arange(width)[None] < (first[1:] - first[:-1])[:, None]
    table = torch.zeros(owned.shape, dtype=torch.int32)
    table[owned] = pages
    return table


def _own_blocks(keys: Sequence[int], width: int, size: int) -> Tensor:
    """Blocks one after the other, as `_blocks` fills them."""
    counts = torch.tensor([-(-n // size) for n in keys])
    starts = torch.tensor([0, *accumulate(host_ints(counts))][:-1])
    columns = torch.arange(width)[None]
    return torch.where(columns < counts[:, None], starts[:, None] + columns, 0).to(torch.int32)


def _blocks(vectors: Tensor, lengths: Sequence[int], size: int) -> Tensor:
    """(N, size, H, D): sequence after sequence, each from the start of a block on, over vectors (sum of keys, H, D)."""
    counts = [-(-n // size) for n in lengths]
    blocks = vectors.new_zeros(sum(counts) * size, *vectors.shape[1:])
    start = done = 0
    for n, count in zip(lengths, counts, strict=True):
        blocks[start : start + n] = vectors[done : done + n]
        start, done = start + count * size, done + n
    return blocks.view(-1, size, *vectors.shape[1:])
