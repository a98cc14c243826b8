"""Devices that need not be here: the figures of cards and CPUs, as their makers state them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.attention import Device
from ..core.errors import InvalidInput
from ..plugins.names import nearest

GIB = 2**30
CUDA_LIBRARIES = {
    "torch": "2.13.0",
    "triton": "3.9.0",
    "flash-attn": "2.8.3.post2",
    "flashinfer-python": "0.7.4",
}
"""What a profile assumes to be installed: the versions Headstock's adapters are written for."""
ROCM_LIBRARIES = {"torch": "2.13.0", "amd-aiter": "0.1.20.post1"}
CPU_LIBRARIES = {"torch": "2.13.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A device under a name."""

    name: str
    """As one writes it after ``--device``; case, ``-``, ``_`` and spaces do not matter."""
    device: Device
    aliases: tuple[str, ...] = ()
    pattern: str = ""
    """Regular expression of what drivers call the card: one that is found here takes bandwidth and peaks from it."""


def _cuda(name: str, capability: tuple[int, int], **figures: object) -> Device:
    arch = f"sm_{capability[0]}{capability[1]}"
    return _assumed(platform="cuda", name=name, arch=arch, capability=capability, libraries=CUDA_LIBRARIES, **figures)


def _cpu(name: str, arch: str, features: str, **figures: object) -> Device:
    features_set = frozenset(features.split())
    return _assumed(platform="cpu", name=name, arch=arch, features=features_set, libraries=CPU_LIBRARIES, **figures)


def _assumed(**figures: object) -> Device:
    return Device(assumed=True, **figures)  # pyright: ignore[reportArgumentType] - the tests build every profile


def _peaks(**tera: float) -> Mapping[str, float]:
    """Dense rates in Tflop/s by dtype → flop/s."""
    return {dtype: round(rate * 1e12) for dtype, rate in tera.items()}


PROFILES = (
    Profile(
        name="a100-80gb",
        aliases=("a100", "a100-sxm-80gb"),
        pattern=r"NVIDIA A100-SXM4-80GB",
        device=_cuda(
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            units=108,
            memory_bytes=80 * GIB,
            bandwidth=2.039e12,
            peak_flops=_peaks(float64=9.7, float32=19.5, bfloat16=312, float16=312),
            source="NVIDIA A100 datasheet, SXM 80 GB; float32 without TF32",
        ),
    ),
    Profile(
        name="a100-40gb",
        aliases=("a100-sxm-40gb",),
        pattern=r"NVIDIA A100-SXM4-40GB",
        device=_cuda(
            "NVIDIA A100-SXM4-40GB",
            (8, 0),
            units=108,
            memory_bytes=40 * GIB,
            bandwidth=1.555e12,
            peak_flops=_peaks(float64=9.7, float32=19.5, bfloat16=312, float16=312),
            source="NVIDIA A100 datasheet, SXM 40 GB; float32 without TF32",
        ),
    ),
    Profile(
        name="h100-sxm",
        aliases=("h100", "h100-80gb"),
        pattern=r"NVIDIA H100 80GB HBM3",
        device=_cuda(
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            units=132,
            memory_bytes=80 * GIB,
            bandwidth=3.35e12,
            peak_flops=_peaks(float64=33.5, float32=66.9, bfloat16=989.4, float16=989.4, float8_e4m3fn=1978.9),
            source="NVIDIA H100 architecture white paper and datasheet, SXM5; dense, float32 without TF32",
        ),
    ),
    Profile(
        name="h100-pcie",
        pattern=r"NVIDIA H100 PCIe",
        device=_cuda(
            "NVIDIA H100 PCIe",
            (9, 0),
            units=114,
            memory_bytes=80 * GIB,
            bandwidth=2.0e12,
            peak_flops=_peaks(float64=25.6, float32=51.2, bfloat16=756, float16=756, float8_e4m3fn=1513),
            source="NVIDIA H100 architecture white paper and datasheet, PCIe; dense, float32 without TF32",
        ),
    ),
    Profile(
        name="b200",
        pattern=r"NVIDIA B200",
        device=_cuda(
            "NVIDIA B200",
            (10, 0),
            units=148,
            memory_bytes=180 * GIB,
            bandwidth=8.0e12,
            peak_flops=_peaks(float64=37, float32=75, bfloat16=2250, float16=2250, float8_e4m3fn=4500),
            source="NVIDIA DGX B200 datasheet, an eighth of the system; dense; units as the driver reports them",
        ),
    ),
    Profile(
        name="rtx4090",
        aliases=("4090", "geforce-rtx-4090"),
        pattern=r"NVIDIA GeForce RTX 4090",
        device=_cuda(
            "NVIDIA GeForce RTX 4090",
            (8, 9),
            units=128,
            memory_bytes=24 * GIB,
            bandwidth=1.008e12,
            peak_flops=_peaks(float64=1.29, float32=82.6, bfloat16=165.2, float16=165.2, float8_e4m3fn=330.3),
            source="NVIDIA Ada architecture white paper; dense, accumulating in float32, float32 without TF32",
        ),
    ),
    Profile(
        name="mi300x",
        pattern=r"AMD Instinct MI300X.*",
        device=_assumed(
            platform="rocm",
            name="AMD Instinct MI300X",
            arch="gfx942",
            units=304,
            memory_bytes=192 * GIB,
            bandwidth=5.3e12,
            peak_flops=_peaks(float64=81.7, float32=163.4, bfloat16=1307.4, float16=1307.4, float8_e4m3fnuz=2614.9),
            libraries=ROCM_LIBRARIES,
            source="AMD Instinct MI300X datasheet; dense",
        ),
    ),
    Profile(
        name="cpu-avx2",
        device=_cpu(
            "AMD EPYC 7763",
            "x86_64",
            "sse4_2 avx f16c fma avx2",
            units=64,
            memory_bytes=256 * GIB,
            bandwidth=204.8e9,
            peak_flops=_peaks(float32=5.0176, float64=2.5088),
            source="AMD: 64 cores at 2.45 GHz, two 256-bit FMA each; eight channels of DDR4-3200; 256 GiB assumed",
        ),
    ),
    Profile(
        name="cpu-avx512",
        device=_cpu(
            "Intel Xeon Platinum 8380",
            "x86_64",
            "sse4_2 avx f16c fma avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni",
            units=40,
            memory_bytes=256 * GIB,
            bandwidth=204.8e9,
            peak_flops=_peaks(float32=5.888, float64=2.944),
            source="Intel: 40 cores at 2.3 GHz, two 512-bit FMA each; eight channels of DDR4-3200; 256 GiB assumed",
        ),
    ),
    Profile(
        name="cpu-arm",
        aliases=("graviton3",),
        device=_cpu(
            "AWS Graviton3",
            "aarch64",
            "asimd asimddp bf16 i8mm sve",
            units=64,
            memory_bytes=128 * GIB,
            bandwidth=307.2e9,
            peak_flops=_peaks(float32=5.3248, float64=2.6624),
            source="AWS and Arm: 64 Neoverse V1 at 2.6 GHz, two 256-bit FMA each; eight channels of DDR5-4800; 128 GiB",
        ),
    ),
)


def profile(name: str) -> Device:
    """The device called `name`; raises `InvalidInput` with suggestions and all names."""
    known = {_squeeze(spelling): p for p in PROFILES for spelling in (p.name, *p.aliases)}
    found = known.get(_squeeze(name))
    if found is not None:
        return found.device
    near = nearest(name, [spelling for p in PROFILES for spelling in (p.name, *p.aliases)], cutoff=0.5)
    advice = f" did you mean {' or '.join(near)}?" if near else ""
    raise InvalidInput(
        "device", f"{name!r} is no known device.{advice} Known are {', '.join(p.name for p in PROFILES)}"
    )


def profile_of(device: Device) -> Device | None:
    """The profile of a card found on this machine, by the name its driver gives it."""
    for p in PROFILES:
        if p.device.platform == device.platform and p.pattern and re.fullmatch(p.pattern, device.name):
            return p.device
    return None


def _squeeze(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.casefold())
