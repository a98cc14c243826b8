"""Configurations of the kernels that are worth measuring for a layer on a card: those that fit it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from ...core.attention import AttentionSpec, Device
from .tuning import Tile, TritonOptions, Tuning, family_of, power_of_two, shared_bytes

ROWS = (32, 64, 128)
KEYS = (16, 32, 64, 128)
WARPS = (2, 4, 8)
STAGES = (1, 2, 3)
DTYPES = ("float32", "bfloat16", "float16")
LANES = {"cuda": 32, "rocm": 64}
"""Threads of a warp."""
NUMBERS = {"cuda": {"float32": 18, "bfloat16": 112, "float16": 112}, "rocm": dict.fromkeys(DTYPES, 224)}
"""Most numbers of output and logits that a thread may hold, by dtype: the rest of 255 registers, or of 512 on AMD, is
for K, V, the query and addresses. Products of float32 go through no tensor core on NVIDIA's cards and hold their
factors in registers, too. Where spills begin was found by compiling for sm_90 and gfx942."""


def configurations(spec: AttentionSpec, device: Device, phase: str) -> tuple[Mapping[str, int], ...]:
    """Options of a phase by name, the defaults not among them; empty on a device that the kernels are not made for."""
    family = family_of(device)
    if family is None:
        return ()
    tuning = Tuning.of(spec, device, TritonOptions())
    default = tuning.decode if phase == "decode" else tuning.prefill
    rows = (default.rows,) if phase == "decode" else tuple(n for n in ROWS if n >= tuning.decode.rows)
    return tuple(
        _options(tile, phase)
        for tile in _tiles(default, rows, device)
        if tile != default
        and shared_bytes(tile, spec) <= family.shared_bytes
        and (device.platform not in LANES or _numbers(tile, spec, device) <= NUMBERS[device.platform][spec.dtype])
    )


def _tiles(default: Tile, rows: tuple[int, ...], device: Device) -> Iterator[Tile]:
    """In the interpreter there are neither warps nor a pipeline."""
    interpreted = device.platform not in LANES
    warps, stages = ((default.warps,), (default.stages,)) if interpreted else (WARPS, STAGES)
    for r, k, w, s in product(rows, KEYS, warps, stages):
        yield replace(default, rows=r, keys=k, warps=w, stages=s)


def _numbers(tile: Tile, spec: AttentionSpec, device: Device) -> float:
    """Of output and logits, a thread."""
    return tile.rows * (power_of_two(spec.head_size_v) + tile.keys) / (tile.warps * LANES[device.platform])


def _options(tile: Tile, phase: str) -> dict[str, int]:
    rows = {"prefill_rows": tile.rows} if phase == "prefill" else {}
    return {**rows, f"{phase}_keys": tile.keys, f"{phase}_warps": tile.warps, f"{phase}_stages": tile.stages}
