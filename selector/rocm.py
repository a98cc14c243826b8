"""AMD's cards as the kernel driver lists them under ``/sys/class/kfd``: read without touching the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Each renumbers what the one before left; HIP reads CUDA's where its own is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmNode:
    """One card."""

    name: str
    """Marketing name where the driver has it, else ``"AMD gfx942"``."""
    arch: str
    units: int
    """Compute units."""
    memory_bytes: int


def rocm_nodes(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> tuple[RocmNode, ...] | None:
    """The cards that a process would see; None where the kernel does not list them or they are chosen by UUID."""
    folders = sorted((root / TOPOLOGY).glob("[0-9]*"), key=lambda folder: int(folder.name))
    nodes = [node for folder in folders if (node := _node(folder, root))]
    return _visible(nodes, os.environ if environ is None else environ) if folders else None


def gfx_name(target_version: int) -> str:
    """``gfx90a`` for 90010: major, minor and stepping have two decimal digits each; the last two are written in hex."""
    major, minor, stepping = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _node(folder: Path, root: Path) -> RocmNode | None:
    """None for a CPU, and for a card that this container has no right to."""
    figures = _properties(folder / "properties")
    if not figures.get("gfx_target_version") or not figures.get("simd_count"):
        return None
    arch = gfx_name(figures["gfx_target_version"])
    banks = [_properties(bank / "properties") for bank in sorted((folder / "mem_banks").glob("[0-9]*"))]
    product = root / f"sys/class/drm/renderD{figures.get('drm_render_minor', 0)}/device/product_name"
    return RocmNode(
        name=(product.read_text().strip() if product.is_file() else "") or f"AMD {arch}",
        arch=arch,
        units=figures["simd_count"] // max(1, figures.get("simd_per_cu", 1)),
        # heap types 1 and 2 are the card's own memory, seen by the host or not
        memory_bytes=sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2)),
    )


def _properties(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _visible(nodes: list[RocmNode], environ: Mapping[str, str]) -> tuple[RocmNode, ...] | None:
    names = VISIBLE[:2] if "HIP_VISIBLE_DEVICES" in environ else (VISIBLE[0], VISIBLE[2])
    for name in names:
        if name not in environ:
            continue
        words = [word.strip() for word in environ[name].split(",") if word.strip()]
        if not all(word.isdigit() for word in words):
            return None
        nodes = [nodes[int(word)] for word in words if int(word) < len(nodes)]
    return tuple(nodes)
