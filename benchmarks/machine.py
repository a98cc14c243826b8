"""The machine a measurement was made on, as far as it matters for the result."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..core.attention import Device
from ..core.version import __version__

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One level of a CPU's caches that holds data."""

    level: int
    kind: str
    """``"Data"`` or ``"Unified"``."""
    nbytes: int
    shared_by: int
    """CPUs that share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """CPU, memory and software."""

    cpu: str
    arch: str
    cpus: int
    """CPUs that this process may use."""
    features: tuple[str, ...]
    memory_bytes: int
    caches: tuple[Cache, ...]
    """Empty where the system does not tell."""
    huge_pages: str
    """Linux' policy of transparent huge pages: ``"always"``, ``"madvise"``, ``"never"``; empty where there is none."""
    system: str
    python: str
    torch: str
    headstock: str
    wait_policy: str
    """``OMP_WAIT_POLICY``: whether idle OpenMP threads spin."""
    when: str
    """UTC."""
    gpu: str = ""
    """The card that was measured; empty where none was."""
    gpu_memory_bytes: int = 0

    @property
    def last_level_bytes(self) -> int | None:
        """Size of the last-level cache; None where unknown."""
        return max((cache.nbytes for cache in self.caches), default=None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        caches = ", ".join(f"L{c.level} {_size(c.nbytes)} for {c.shared_by}" for c in self.caches) or "unknown"
        vectors = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve") if f in self.features]
        card = [f"{self.gpu}, {self.gpu_memory_bytes / 2**30:.0f} GiB"] if self.gpu else []
        return [
            *card,
            f"{self.cpu} ({self.arch}; {', '.join(vectors) or 'no vectors we know'}), {self.cpus} CPUs, "
            f"{self.memory_bytes / 2**30:.0f} GiB, huge pages {self.huge_pages or 'unknown'}",
            f"caches: {caches}",
            f"headstock {self.headstock}, torch {self.torch}, Python {self.python}, {self.system}, "
            f"OMP_WAIT_POLICY {self.wait_policy or 'not set'}",
        ]


def describe(device: Device, root: Path = ROOT, *, measured: Device | None = None) -> Machine:
    """This machine, `device` being its CPUs, and `measured` where the measurement is made, if that is a card."""
    card = measured if measured is not None and measured.platform != "cpu" else None
    return Machine(
        cpu=device.name,
        arch=device.arch,
        cpus=device.units,
        features=tuple(sorted(device.features)),
        memory_bytes=device.memory_bytes,
        caches=read_caches(root),
        huge_pages=_chosen(_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=torch.__version__,
        headstock=__version__,
        wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        gpu=card.name if card else "",
        gpu_memory_bytes=card.memory_bytes if card else 0,
    )


def read_caches(root: Path = ROOT) -> tuple[Cache, ...]:
    """Data caches of the first CPU, smallest level first, from Linux' sysfs."""
    found: list[Cache] = []
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, size = _text(folder / "type"), _text(folder / "size")
        if kind in ("Data", "Unified") and size[:-1].isdigit():
            nbytes = int(size[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[size[-1]]
            shared = _count(_text(folder / "shared_cpu_list"))
            found.append(Cache(level=int(_text(folder / "level")), kind=kind, nbytes=nbytes, shared_by=shared))
    return tuple(found)


def load_average() -> float | None:
    """Processes that ran or waited to run in the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:g} KiB"


def _count(cpu_list: str) -> int:
    """CPUs in a list such as ``0-3,8``."""
    spans = [span.split("-") for span in cpu_list.split(",") if span]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans) or 1


def _chosen(text: str) -> str:
    """The word in brackets: ``always [madvise] never``."""
    return text.partition("[")[2].partition("]")[0]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
