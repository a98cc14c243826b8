"""Intel's cards."""

from __future__ import annotations

from .value import GIB, Profile, peaks, xpu

INTEL = (
    Profile(
        name="arc-b580",
        aliases=("b580",),
        pattern=r"Intel\(R\) Arc\(TM\) B580 Graphics",
        device=xpu(
            "Intel(R) Arc(TM) B580 Graphics",
            "xe_20.1",
            units=20,
            memory_bytes=12 * GIB,
            bandwidth=456e9,
            peak_flops=peaks(float32=13.67),
            source="Intel Arc B580 specifications: 20 Xe cores of 128 lanes at 2.67 GHz, 192 bits of GDDR6 at 19 Gbps; "
            "for 16-bit floats none are stated",
        ),
    ),
    Profile(
        name="max-1550",
        aliases=("gpu-max-1550", "pvc"),
        pattern=r"Intel\(R\) Data Center GPU Max 1550",
        device=xpu(
            "Intel(R) Data Center GPU Max 1550",
            "xe_12.60",
            units=64,
            memory_bytes=64 * GIB,
            bandwidth=1.6384e12,
            peak_flops=peaks(float64=26.2, float32=26.2, bfloat16=419.4, float16=419.4),
            source="Intel Data Center GPU Max 1550, half of it, as torch sees each stack as a device: 64 Xe cores at "
            "1.6 GHz with 256 operations a clock in float64 and float32 and 4096 in 16 bits (Intel Architecture Day "
            "2021); 4096 bits of HBM2e at 3.2 Gbps",
        ),
    ),
)
