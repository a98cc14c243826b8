"""The devices of this machine."""

from __future__ import annotations

import logging
import platform
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..core.attention import Device
from ..core.errors import InvalidInput
from ..plugins import Hooks
from . import host
from .profiles import PROFILES, profile, profile_of
from .rocm import rocm_nodes

log = logging.getLogger("headstock.selector")
LIBRARIES = (
    "torch",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "flashinfer-python",
    "amd-aiter",
    "pytorch-triton-rocm",
)
"""Distributions whose version capabilities may depend on."""
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""What some systems call them → what Linux does."""


def probe(hooks: Hooks | None = None) -> tuple[Device, ...]:
    """Every device of this machine that the installed torch can use, and those of plugins; CPUs come last."""
    import torch

    own = (*cuda_devices(torch), *rocm_devices(torch), *xpu_devices(torch), *mps_devices(torch))
    return (*own, *(hooks.devices() if hooks else ()), cpu_device())


def find_device(name: str | None = None, hooks: Hooks | None = None, *, profiles: bool = True) -> Device:
    """The device that `name` means: None, the best one here; ``"cpu"``, ``"cuda:1"``, one here; else a profile, unless
    `profiles` says that something is to run on it.

    Raises `InvalidInput` where there is none of that name.
    """
    here = probe(hooks)
    if name is None:
        if here[0].platform == "cpu":
            for reason in idle_accelerators(_torch()):
                log.warning("%s; the CPU is used", reason)
        return here[0]
    offer = ", ".join(f"{d.platform}:{d.index} ({d.name})" for d in here)
    wanted, _, index = name.strip().casefold().partition(":")
    if wanted not in {"cpu", "cuda", "rocm", "xpu", "mps"} | {device.platform for device in here}:
        assumed = profile(name)
        if profiles:
            return assumed
        raise InvalidInput("device", f"{assumed.name} is a profile, and no device of this machine, which has {offer}")
    for device in here:
        if device.platform == wanted and device.index == (int(index) if index.isdigit() else 0):
            return device
    advice = f"; or name a profile: {_profiles()}" if profiles else ""
    raise InvalidInput("device", f"{name!r} is not on this machine, which has {offer}{advice}")


def cpu_device(root: Path = host.ROOT, machine: str = "", system: str = sys.platform) -> Device:
    """The CPUs that this process may use. Their bandwidth and peaks are not known without measuring."""
    arch = (machine or platform.machine()).casefold()
    arch = ARCHITECTURES.get(arch, arch)
    name, features = host.mac_cpu_info(arch) if system == "darwin" else host.cpu_info(root)
    return Device(
        platform="cpu",
        name=name or platform.processor() or arch,
        arch=arch,
        units=host.cpu_count(root),
        features=features,
        memory_bytes=host.memory_bytes(root),
        libraries=installed_libraries(),
        source="this machine",
    )


def cuda_devices(torch: Any) -> tuple[Device, ...]:
    """The cards a CUDA build of torch sees. Counting them touches none of them, reading their properties does."""
    if torch.version.cuda is None:
        return ()
    found: list[Device] = []
    for index in range(torch.cuda.device_count()):
        try:
            card = torch.cuda.get_device_properties(index)
        except RuntimeError as error:
            log.warning("cuda:%d is here but cannot be used: %s", index, error)
            continue
        device = Device(
            platform="cuda",
            name=card.name,
            arch=f"sm_{card.major}{card.minor}",
            capability=(card.major, card.minor),
            index=index,
            units=card.multi_processor_count,
            memory_bytes=card.total_memory,
            bandwidth=_dram_bandwidth(card),
            libraries=installed_libraries(),
            source="this machine",
        )
        found.append(_with_figures(device))
    return tuple(found)


def rocm_devices(torch: Any, root: Path = host.ROOT) -> tuple[Device, ...]:
    """The cards a ROCm build of torch sees: from the kernel's list where there is one, so that no card is touched."""
    if torch.version.hip is None:
        return ()
    nodes = rocm_nodes(root)
    if nodes is None:
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        facts = [(c.name, c.gcnArchName.split(":")[0], c.multi_processor_count, c.total_memory) for c in cards]
    else:
        facts = [(node.name, node.arch, node.units, node.memory_bytes) for node in nodes]
    return tuple(
        _with_figures(
            Device(
                platform="rocm",
                name=name,
                arch=arch,
                index=index,
                units=units,
                memory_bytes=memory,
                libraries=installed_libraries(),
                source="this machine",
            )
        )
        for index, (name, arch, units, memory) in enumerate(facts)
    )


def xpu_devices(torch: Any) -> tuple[Device, ...]:
    """Intel's GPUs, one a tile, as torch sees them; none from a torch without XPU. Never run on one."""
    xpu = getattr(torch, "xpu", None)
    if xpu is None or not xpu.is_available():
        return ()
    found: list[Device] = []
    for index in range(xpu.device_count()):
        try:
            card = xpu.get_device_properties(index)
        except RuntimeError as error:
            log.warning("xpu:%d is here but cannot be used: %s", index, error)
            continue
        device = Device(
            platform="xpu",
            name=card.name,
            arch=xe_name(getattr(card, "architecture", 0)),
            index=index,
            units=getattr(card, "gpu_subslice_count", 0) or card.max_compute_units,
            memory_bytes=card.total_memory,
            libraries=installed_libraries(),
            source="this machine",
        )
        found.append(_with_figures(device))
    return tuple(found)


def xe_name(architecture: int) -> str:
    """``xe_20.1`` for 0x05004004: its bits from 22 are the major number, those from 14 the minor; ``xe`` without."""
    major, minor = architecture >> 22 & 0x3FF, architecture >> 14 & 0xFF
    return f"xe_{major}.{minor}" if major else "xe"


def mps_devices(torch: Any) -> tuple[Device, ...]:
    """The GPU of an Apple chip; none elsewhere. Its memory is the machine's, of which Metal says how much it may use.

    Never run on one.
    """
    mps = getattr(torch.backends, "mps", None)
    if mps is None or not mps.is_available():
        return ()
    # Older torch has neither of the two; the chip's name is the CPU's.
    name = mps.get_name() if hasattr(mps, "get_name") else host.mac_cpu_info("aarch64")[0]
    device = Device(
        platform="mps",
        name=name or "Apple GPU",
        arch="apple",
        units=mps.get_core_count() if hasattr(mps, "get_core_count") else 1,
        memory_bytes=torch.mps.recommended_max_memory(),
        libraries=installed_libraries(),
        source="this machine",
    )
    return (_with_figures(device),)


def idle_accelerators(torch: Any, root: Path = host.ROOT) -> tuple[str, ...]:
    """Cards that are here and that the installed torch cannot use: without a word, people wonder for hours."""
    build = f"torch {torch.__version__}"
    reasons: list[str] = []
    if (root / "proc/driver/nvidia/version").exists():
        if torch.version.cuda is None:
            reasons.append(f"an NVIDIA driver is here, but {build} is not built for CUDA")
        elif torch.cuda.device_count() == 0:
            reasons.append(
                f"an NVIDIA driver is here, but {build} sees no card (CUDA_VISIBLE_DEVICES, or an old driver)"
            )
    if rocm_nodes(root, {}) and torch.version.hip is None:
        reasons.append(f"an AMD card is here, but {build} is not built for ROCm")
    return tuple(reasons)


def installed_libraries() -> dict[str, str]:
    """Version of each of `LIBRARIES` that is installed."""
    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _with_figures(device: Device) -> Device:
    """`device` with the bandwidth and peaks that its maker states, where it is a card we know."""
    known = profile_of(device)
    if known is None:
        return device
    source = f"this machine; bandwidth and peaks: {known.source}"
    return replace(device, bandwidth=known.bandwidth, peak_flops=known.peak_flops, source=source)


def _dram_bandwidth(card: Any) -> float | None:
    """Peak of a card's memory, two transfers a clock; None where this torch tells no clock (kHz) and width (bits)."""
    clock, width = getattr(card, "memory_clock_rate", 0), getattr(card, "memory_bus_width", 0)
    return 2 * clock * 1e3 * width / 8 or None


def _torch() -> Any:
    import torch

    return torch


def _profiles() -> str:
    return ", ".join(p.name for p in PROFILES)
