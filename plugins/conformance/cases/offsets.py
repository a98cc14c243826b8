"""Cases of large caches: planes of more elements than 32 bits count, of which only a few pages are ever touched."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ....core.attention import KVCache, KVLayout, Plane
from ....core.attention.cache import slots_of
from ..broken import Skipped
from ..case import Draft
from ..ground import DTYPES, Ground, samples
from ..judges import require_alike
from ..oracle import require_close, tolerance_of
from ..problem import Problem
from ..rig import Rig
from ..scene import Scene, batch_of, to_device
from ..subject import Subject

BOUNDARIES = (2**31, 2**32)
"""Elements at which signed and unsigned 32-bit offsets start over."""
KV_HEADS = 8
MAP_NORESERVE = 0x4000
"""Linux: a mapping of pages that need not be there. Python 3.11 does not name it."""


def offsets(ground: Ground, full: bool) -> Iterator[Draft]:
    """Blocks on both sides of 2^31 and 2^32 elements, as far as the backend says that it can count."""
    caps = ground.capabilities
    short = [d for d in ("bfloat16", "float16", "float32", "float64") if d in caps.dtypes]
    head = samples(caps.head_sizes, (128, 64, 256, 32, 16))[0]
    block = (samples(caps.block_sizes, (16, 32, 64, 128, 256, 8, 4, 2, 1)) or [16])[0]
    rows = ((1, 2 * block + 3), (1, block + 2), (1, 4))
    for dtype in short[:1] if not full else [d for d in DTYPES if d in short]:
        for layout in caps.layouts:
            spec = {
                "num_kv_heads": KV_HEADS,
                "head_size": head,
                "block_size": block,
                "dtype": dtype,
                "kv_source": "cache",
                "causal": False not in caps.causal,
            }
            problem = ground.problem(rows, spec=spec, layout=layout)
            yield f"read-{layout}-{dtype}", _reads, problem
            yield f"write-{layout}-{dtype}", _writes, problem


def _reads(subject: Subject, problem: Problem) -> None:
    rig, scene, layout = _large(subject, problem)
    assert scene.cache is not None
    slots, keys, values = _everything(scene)
    layout.scatter(scene.cache, scene.layer, keys, values, slots)
    far = rig.forward(scene, rig.plan(scene.batch))
    near = Rig(subject, problem).solve(problem)
    require_alike("of blocks far apart", near, far, tolerance_of(problem))


def _writes(subject: Subject, problem: Problem) -> None:
    """The backend writes all tokens of all rows; the layout reads them back."""
    rig, scene, layout = _large(subject, problem)
    assert scene.cache is not None
    slots, keys, values = _everything(scene)
    rig.write(replace(scene, key=keys, value=values), slots)
    got = layout.gather(scene.cache, scene.layer, slots, torch.float64)
    small = rig.scene(problem)
    assert small.cache is not None
    right = layout.gather(small.cache, small.layer, _slots(small), torch.float64)
    for name, one, other in zip(("K", "V"), got, right, strict=True):
        require_close(f"{name} in the cache", one.cpu(), other.cpu(), 0.0)


def _large(subject: Subject, problem: Problem) -> tuple[Rig, Scene, KVLayout]:
    """A rig, and the problem's scene over a cache that is as large as the backend says it can address."""
    layout = subject.layout_of(problem)
    assert layout is not None, "the problem has a cache"
    rig = Rig(subject, problem)
    small = rig.scene(problem)
    table = small.batch.block_table
    assert table is not None
    count = _count(subject, problem, layout)
    ids = _ids(problem, layout, count, need=int(table.max()))
    planes = {n: _allocate(p, subject.torch_device) for n, p in layout.planes(problem.spec, count).items()}
    cache = KVCache(layout=layout, planes=planes, block_size=problem.spec.block_size)
    moved = torch.tensor([0, *ids], dtype=torch.int32)[table.cpu().long()]
    batch = batch_of(problem, moved, decode_query_len=subject.capabilities.decode_query_len)
    scene = replace(small, planes={}, cache=cache, batch=to_device(batch, subject.torch_device))
    return rig, scene, layout


def _count(subject: Subject, problem: Problem, layout: KVLayout) -> int:
    """Blocks of the largest plane that is declared and that crosses every boundary."""
    each = max(plane.elements for plane in layout.planes(problem.spec, 1).values())
    most = min(subject.capabilities.max_cache_elements, BOUNDARIES[-1] + 4 * each)
    if most // each < 16:
        raise Skipped(f"max_cache_elements: {most} elements are too few blocks")
    return most // each


def _ids(problem: Problem, layout: KVLayout, count: int, need: int) -> list[int]:
    """Blocks at the boundaries first, then from the end downwards."""
    each = max(plane.elements for plane in layout.planes(problem.spec, 1).values())
    near = [b // each + i for b in BOUNDARIES for i in (0, -1, 1) if b // each + i < count]
    return list(dict.fromkeys([*near, *range(count - 1, count - 2 * need - 8, -1)]))[:need]


def _everything(scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    """Slots, K and V of all tokens of all rows."""
    device = scene.query.device
    return _slots(scene), torch.cat(scene.data.keys).to(device), torch.cat(scene.data.values).to(device)


def _slots(scene: Scene) -> Tensor:
    table, size = scene.batch.block_table, scene.problem.spec.block_size
    assert table is not None
    return torch.cat([slots_of(table[row], keys, size) for row, (_, keys) in enumerate(scene.problem.rows)])


def _allocate(plane: Plane, device: str) -> Tensor:
    """A plane of zeros; on CPUs behind as much room as a negative 32-bit offset spans, and without memory."""
    strides = plane.strides or torch.empty(plane.shape, device="meta").stride()
    size = plane.elements * plane.dtype.itemsize
    try:
        if device != "cpu":
            return torch.zeros(plane.elements, dtype=plane.dtype, device=device).as_strided(plane.shape, strides)
        before = BOUNDARIES[0] * plane.dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_NORESERVE if sys.platform == "linux" else 0)
        memory = mmap.mmap(-1, before + size, flags=flags)
    except (OSError, RuntimeError) as error:
        raise Skipped(f"a plane of {size / 2**30:.1f} GiB cannot be had here: {error}") from error
    flat = torch.frombuffer(memory, dtype=plane.dtype, count=plane.elements, offset=before)
    return flat.as_strided(plane.shape, strides)
