"""`Device`: what a backend's capabilities are a function of. A plain value, probed or taken from a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or the CPUs of one machine. Holds no torch object: `explain` can speak of cards not here."""

    platform: str
    """``"cpu"``, ``"cuda"``, ``"rocm"``, ``"xpu"`` or ``"mps"``."""
    name: str
    """As the vendor writes it, e.g. ``"NVIDIA H100 80GB HBM3"``."""
    arch: str
    """``"sm_90"``, ``"gfx942"``, ``"x86_64"``, ``"aarch64"``."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    index: int = 0
    """Ordinal on this machine."""
    units: int = 1
    """Streaming multiprocessors, compute units or CPU cores."""
    features: frozenset[str] = frozenset()
    """Instruction sets of a CPU: ``"avx2"``, ``"avx512_bf16"``, ``"amx_tile"``…"""
    memory_bytes: int = 0
    """Capacity of the memory the KV cache lives in."""
    bandwidth: float | None = None
    """Peak read bandwidth of that memory in bytes/s; None where unknown."""
    peak_flops: Mapping[str, float] = field(default_factory=dict[str, float])
    """Dense peak in operations/s by dtype name, without sparsity."""
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    """Versions by distribution name, e.g. ``{"torch": "2.13.0"}``."""
    assumed: bool = False
    """True for a profile: the card is not here and `libraries` are an assumption."""
    source: str = ""
    """Where the figures come from."""

    @property
    def torch_device(self) -> str:
        """The string `torch.device` takes; ROCm's torch calls its cards cuda."""
        if self.platform == "cpu":
            return "cpu"
        return f"{'cuda' if self.platform == 'rocm' else self.platform}:{self.index}"
