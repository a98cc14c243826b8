"""What a profile is, and short ways to write one down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.attention import Device

GIB = 2**30
CUDA_LIBRARIES = {
    "torch": "2.13.0",
    "triton": "3.9.0",
    "flash-attn": "2.8.3.post2",
    "flash-attn-4": "4.0.0b36",
    "flashinfer-python": "0.7.4",
}
"""What a profile assumes to be installed: the versions Headstock's adapters are written for."""
HOPPER_LIBRARIES = {"flash-attn-3": "3.0.0b1"}
ROCM_LIBRARIES = {"torch": "2.13.0", "amd-aiter": "0.1.20.post1"}
TORCH_ONLY = {"torch": "2.13.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A device under a name."""

    name: str
    """As one writes it after ``--device``; case, ``-``, ``_`` and spaces do not matter."""
    device: Device
    aliases: tuple[str, ...] = ()
    pattern: str = ""
    """Regular expression of what drivers call the card: one that is found here takes bandwidth and peaks from it."""


def assumed(**figures: object) -> Device:
    """A device that is not here."""
    return Device(assumed=True, **figures)  # pyright: ignore[reportArgumentType] - the tests build every profile


def cuda(name: str, capability: tuple[int, int], **figures: object) -> Device:
    """A card of NVIDIA's."""
    arch = f"sm_{capability[0]}{capability[1]}"
    libraries = CUDA_LIBRARIES | (HOPPER_LIBRARIES if capability[0] == 9 else {})
    return assumed(platform="cuda", name=name, arch=arch, capability=capability, libraries=libraries, **figures)


def rocm(name: str, arch: str, **figures: object) -> Device:
    """A card of AMD's."""
    return assumed(platform="rocm", name=name, arch=arch, libraries=ROCM_LIBRARIES, **figures)


def xpu(name: str, arch: str, **figures: object) -> Device:
    """A card of Intel's."""
    return assumed(platform="xpu", name=name, arch=arch, libraries=TORCH_ONLY, **figures)


def mps(name: str, **figures: object) -> Device:
    """The GPU of an Apple chip; its memory is the machine's."""
    return assumed(platform="mps", name=name, arch="apple", libraries=TORCH_ONLY, **figures)


def cpu(name: str, arch: str, features: str, **figures: object) -> Device:
    """The CPUs of one socket."""
    features_set = frozenset(features.split())
    return assumed(platform="cpu", name=name, arch=arch, features=features_set, libraries=TORCH_ONLY, **figures)


def peaks(**tera: float) -> Mapping[str, float]:
    """Dense rates in Tflop/s by dtype → flop/s."""
    return {dtype: round(rate * 1e12) for dtype, rate in tera.items()}
