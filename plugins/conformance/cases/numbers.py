"""Cases of numbers: KV formats, sizes, dtypes, precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ....core.attention import KV_FORMATS, Capabilities
from ..case import Draft
from ..closed_forms import first_key_share, probe_means
from ..ground import DTYPES, GROUPS, Ground, samples
from ..judges import PHASES, by_closed_form, by_reference, closed
from ..problem import Problem, Rows
from .writing import saturates, writes, writes_nearly

HEAD_SIZES = (1, 8, 40, 64, 72, 80, 88, 96, 112, 128, 192, 256)
FEW_HEAD_SIZES = (40, 64, 80, 128, 256)
BLOCK_SIZES = (1, 2, 3, 4, 8, 16, 17, 32, 64, 128, 256)
V_SIZES = ((64, 32), (32, 64), (192, 128), (16, 5), (40, 24), (576, 512))
ROWS: Rows = ((1, 33), (1, 1), (5, 70), (18, 18))


def kv_formats(ground: Ground, full: bool) -> Iterator[Draft]:
    """Every format with scales that are not 1, by tensor and by head, read and written."""
    for kv_format, scales in formats(ground.capabilities):
        word = kv_format if scales == "none" else f"{kv_format}-{scales}"
        spec = {"kv_format": kv_format, "kv_scales": scales, "kv_source": "cache"}
        # k / 0.25 and v / 0.5 stored: e / (e + 1), which a scale that is not applied turns into 0.98 or into half.
        share = replace(closed(ground, ((1, 2), (2, 2)), "first", scale=1.0, **spec), k_scale=0.25, v_scale=0.5)
        yield f"{word}-share", by_closed_form(first_key_share), share
        for layout in ground.capabilities.layouts[1:]:
            yield f"{word}-share-{layout}", by_closed_form(first_key_share), replace(share, layout=layout)
        for phase in PHASES if full else ("decode", "mixed"):
            yield f"{word}-{phase}", by_reference, ground.problem(PHASES[phase], spec=spec)
        problem = ground.problem(((1, 5), (1, 9), (3, 11), (6, 6)), spec=spec)
        scaled = KV_FORMATS[kv_format].scaled
        yield f"{word}-written", writes_nearly if scaled else writes, problem
        if scaled:
            yield f"{word}-written-exactly", writes, replace(problem, k_scale=0.0625, v_scale=0.25)
            yield f"{word}-saturates", saturates, problem


def sizes(ground: Ground, full: bool) -> Iterator[Draft]:
    """Head sizes that are no power of 2, V unlike K, odd blocks and groups."""
    caps = ground.capabilities
    for head_size in samples(caps.head_sizes, HEAD_SIZES if full else FEW_HEAD_SIZES):
        yield f"head-{head_size}", by_reference, ground.problem(ROWS, spec={"head_size": head_size})
    for k_size, v_size in V_SIZES if full else V_SIZES[:4]:
        for source in ("cache", "ragged"):
            spec = {"head_size": k_size, "head_size_v": v_size, "kv_source": source}
            yield f"v-{v_size}-of-{k_size}-{source}", by_reference, ground.problem(ROWS, spec=spec)
        for layout in caps.layouts[1:]:
            spec = {"head_size": k_size, "head_size_v": v_size, "kv_source": "cache"}
            yield f"v-{v_size}-of-{k_size}-{layout}", by_reference, ground.problem(ROWS, spec=spec, layout=layout)
    for block_size in samples(caps.block_sizes, BLOCK_SIZES):
        for phase in PHASES if full else ("mixed",):
            problem = closed(ground, PHASES[phase], causal=True, block_size=block_size, kv_source="cache")
            yield f"block-{block_size}-{phase}", by_closed_form(probe_means), problem
        yield (
            f"block-{block_size}",
            by_reference,
            ground.problem(ROWS, spec={"block_size": block_size, "kv_source": "cache"}),
        )
    for group in samples(caps.group_sizes, GROUPS):
        yield f"group-{group}", by_reference, ground.problem(ROWS, spec={"num_heads": 2 * group})


def dtypes(ground: Ground, full: bool) -> Iterator[Draft]:
    """Each dtype, in every phase and over long rows."""
    long: Rows = ((1, 400), (1, 3), (7, 70), (64, 64))
    for dtype in DTYPES:
        for phase, rows in PHASES.items():
            yield f"{dtype}-{phase}", by_reference, ground.problem(rows, spec={"dtype": dtype})
        yield f"{dtype}-long", by_reference, ground.problem(long, spec={"dtype": dtype})
        yield f"{dtype}-ragged", by_reference, ground.problem(ROWS, spec={"dtype": dtype, "kv_source": "ragged"})


def precision(ground: Ground, full: bool) -> Iterator[Draft]:
    """The share of ones behind a third as many zeros: a sum in a 16-bit float stops growing long before it is done."""
    by_share = by_closed_form(_share_of_ones)
    causal = False not in ground.capabilities.causal
    for dtype in ("float16", "bfloat16", "float32"):
        for keys in (5000, 40000) if full else (5000,):
            yield f"{dtype}-{keys}", by_share, closed(ground, ((1, keys),), "late", dtype=dtype, causal=causal)
    yield "extend", by_share, closed(ground, ((3, 5000),), "late", causal=False)


def formats(caps: Capabilities) -> Iterator[tuple[str, str]]:
    """(KV format, scales) of all that is declared and makes sense."""
    for name in sorted(caps.kv_formats & KV_FORMATS.keys()):
        if not KV_FORMATS[name].scaled:
            yield name, "none"
            continue
        grains = {"int8_per_tensor": {"tensor"}, "int8_per_head": {"head"}}.get(name, {"tensor", "head"})
        for scales in sorted(grains & caps.kv_scales) or ["none"]:
            yield name, scales


def _share_of_ones(problem: Problem) -> Tensor:
    shares = [(keys - keys // 4) / keys for queries, keys in problem.rows for _ in range(queries)]
    return torch.tensor(shares, dtype=torch.float64)[:, None, None]
