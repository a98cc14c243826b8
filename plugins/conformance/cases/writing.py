"""Cases of `write_kv`, apart from `forward`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ....core.attention import KVCache, KVLayout
from ..broken import Broken
from ..case import Draft
from ..ground import Ground
from ..problem import Problem, Rows
from ..rig import Rig
from ..scene import layer_of, num_blocks
from ..subject import Subject

ROWS: Rows = ((1, 5), (1, 9), (3, 11), (6, 6))


def writing(ground: Ground, full: bool) -> Iterator[Draft]:
    """New rows of a step in every layout, byte for byte as the layout's own scatter writes them."""
    cache = {"kv_source": "cache"}
    for layout in ground.capabilities.layouts:
        yield f"rows-{layout}", writes, ground.problem(ROWS, spec=cache, layout=layout)
        yield f"strided-{layout}", writes, ground.problem(ROWS, spec=cache, layout=layout, strided=True)
        yield f"odd-heads-{layout}", writes, ground.problem(ROWS, spec={"num_kv_heads": 3, **cache}, layout=layout)
    plain = ground.problem(ROWS, spec=cache)
    yield "padding", writes, replace(plain, padded_rows=4, padded_queries=1)
    yield "no-slot-at-all", Slots(lambda slots: torch.full_like(slots, -1)), plain
    yield "every-other-slot", Slots(lambda slots: torch.where(torch.arange(len(slots)) % 2 == 0, slots, -1)), plain
    yield "in-any-order", Slots(lambda slots: slots.flip(0)), plain
    yield "no-row", writes, ground.problem(((0, 3), (0, 7)), spec=cache)
    yield "long", writes, ground.problem(((257, 257), (70, 300)), spec=cache)


class Slots:
    """Write the step's rows to other slots: `change` makes them of the batch's."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self._change = change

    def __call__(self, subject: Subject, problem: Problem) -> None:
        write_and_compare(subject, problem, self._change)


def writes(subject: Subject, problem: Problem) -> None:
    """The bytes of the layout's own scatter, everywhere."""
    write_and_compare(subject, problem)


def writes_nearly(subject: Subject, problem: Problem) -> None:
    """The same, but for roundings: a stored code may be the one above or below."""
    write_and_compare(subject, problem, codes=1)


def saturates(subject: Subject, problem: Problem) -> None:
    """Values beyond the format's largest are stored as that."""
    write_and_compare(subject, problem, codes=1, factor=1e4)


def write_and_compare(
    subject: Subject,
    problem: Problem,
    change: Callable[[Tensor], Tensor] = lambda slots: slots,
    *,
    codes: int = 0,
    factor: float = 1.0,
) -> None:
    """Write new rows over what is there, and compare every byte of the planes; `codes` is how far a code may be off."""
    layout = subject.layout_of(problem)
    assert layout is not None, "the problem has a cache"
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    assert scene.batch.slot_mapping is not None
    slots = change(scene.batch.slot_mapping.cpu())
    for x, seed in ((scene.key, 1), (scene.value, 2)):
        rng = torch.Generator().manual_seed(problem.seed * 7 + seed)
        x.copy_(factor * torch.randn(x.shape, generator=rng))
    right = {name: plane.copy("cpu") for name, plane in scene.planes.items()}
    wanted = KVCache(layout=layout, planes={n: p.tensor for n, p in right.items()}, block_size=problem.spec.block_size)
    layout.scatter(wanted, layer_of(problem, "cpu"), scene.key.cpu(), scene.value.cpu(), slots)
    rig.write(scene, slots.to(subject.torch_device))
    for name in scene.planes:
        _compare(name, scene.planes[name].tensor.cpu(), wanted.planes[name], slots, problem, layout, codes)


def _compare(
    name: str, got: Tensor, wanted: Tensor, slots: Tensor, problem: Problem, layout: KVLayout, codes: int
) -> None:
    """Slot by slot: those of `slots` within `codes`, all others to the bit."""
    size = problem.spec.block_size
    everywhere = torch.arange(num_blocks(problem) * size)
    a, b = (_ordered(layout.gather_rows(plane, everywhere, size)) for plane in (got, wanted))
    off = (a - b).abs().flatten(1).amax(1)
    given = torch.zeros(len(everywhere), dtype=torch.bool)
    given[slots[slots >= 0]] = True
    wrong = torch.where(given, off > codes, off > 0)
    if bool(wrong.any()):
        slot = int(wrong.nonzero()[0])
        what = "does not hold the row it was given" if bool(given[slot]) else "was written without being given"
        last = " (the last one: -1 taken for an index)" if slot == len(everywhere) - 1 and not bool(given[slot]) else ""
        raise Broken(f"slot {slot} of plane {name} {what}{last}; {int(wrong.sum())} slots are wrong")


def _ordered(x: Tensor) -> Tensor:
    """The codes of x as int64, such that neighbouring numbers differ by 1."""
    x = x.contiguous()
    bits = x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]).long()
    if x.dtype == torch.int8:
        return x.long()
    if x.element_size() == 1:
        return torch.where(bits < 128, bits, 128 - bits)
    return bits
