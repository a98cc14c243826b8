"""From a recording to shapes of the kernel benchmark, and to the numbers they attend over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from ...core.live import RecordedStep, RecordedTensors, Recording
from ..kernels.data import Pool
from ..kernels.shapes import Shape

T = TypeVar("T")


def spread(items: Sequence[T], most: int | None) -> list[T]:
    """All of them, or of too many `most`, evenly."""
    if most is None or len(items) <= most:
        return list(items)
    return [items[index * (len(items) - 1) // max(most - 1, 1)] for index in range(most)]


def recorded_shapes(recording: Recording, most: int | None = None) -> list[Shape]:
    """One shape a step and attention group, those that are alike once; of too many, `most` spread evenly."""
    every = [shape for step in recording.steps for _, shape in step_shapes(step)]
    return spread(list({(shape.rows, shape.layer): shape for shape in reversed(every)}.values())[::-1], most)


def step_shapes(step: RecordedStep) -> Iterator[tuple[int, Shape]]:
    """(group, shape) of each attention group whose layers have a cache and equal heads for K and V."""
    for index, group in enumerate(step.groups):
        rows, spec = step.rows(group.kv_group), group.spec
        if spec.kv_source != "cache" or spec.latent or spec.head_size != spec.head_size_v or not rows:
            continue
        queries, keys = zip(*rows, strict=True)
        name = f"step {step.number}" + (f" group {index}" if len(step.groups) > 1 else "")
        yield (
            index,
            Shape(
                phase=_phase(rows),
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_size=spec.head_size,
                batch=len(rows),
                queries=max(queries),
                length=max(keys),
                rows=rows,
                name=f"{name}: {len(rows)} rows, {sum(queries)} new of {sum(keys)}",
                layer=replace(spec, masks=frozenset(), block_size=16),
            ),
        )


def _phase(rows: tuple[tuple[int, int], ...]) -> str:
    if all(new == 1 for new, _ in rows):
        return "decode"
    return "prefill" if all(new == keys for new, keys in rows) else "chunk"


class RecordedPool(Pool):
    """A pool that holds what was recorded: sequence r starts where its tokens do."""

    def __init__(self, shape: Shape, tensors: RecordedTensors) -> None:
        self.keys, self.values, self.queries = tensors.key, tensors.value, tensors.query
        self._starts = [0, *accumulate(length for _, length in shape.sequences)]

    def offset(self, sequence: int) -> int:
        return self._starts[sequence]


def made_up_pool(shape: Shape, dtype: str) -> Pool:
    """Where no vectors were recorded."""
    return Pool.of(shape.heads, dtype, [shape])
