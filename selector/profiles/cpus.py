"""CPUs, by what their instruction sets are. Rates are at the base clock."""

from __future__ import annotations

from .value import GIB, Profile, cpu, peaks

CPUS = (
    Profile(
        name="cpu-avx2",
        device=cpu(
            "AMD EPYC 7763",
            "x86_64",
            "sse4_2 avx f16c fma avx2",
            units=64,
            memory_bytes=256 * GIB,
            bandwidth=204.8e9,
            peak_flops=peaks(float32=5.0176, float64=2.5088),
            source="AMD: 64 cores at 2.45 GHz, two 256-bit FMA each; eight channels of DDR4-3200; 256 GiB assumed",
        ),
    ),
    Profile(
        name="cpu-avx512",
        device=cpu(
            "Intel Xeon Platinum 8380",
            "x86_64",
            "sse4_2 avx f16c fma avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni",
            units=40,
            memory_bytes=256 * GIB,
            bandwidth=204.8e9,
            peak_flops=peaks(float32=5.888, float64=2.944),
            source="Intel: 40 cores at 2.3 GHz, two 512-bit FMA each; eight channels of DDR4-3200; 256 GiB assumed",
        ),
    ),
    Profile(
        name="cpu-arm",
        aliases=("graviton3",),
        device=cpu(
            "AWS Graviton3",
            "aarch64",
            "asimd asimddp bf16 i8mm sve",
            units=64,
            memory_bytes=128 * GIB,
            bandwidth=307.2e9,
            peak_flops=peaks(float32=5.3248, float64=2.6624),
            source="AWS and Arm: 64 Neoverse V1 at 2.6 GHz, two 256-bit FMA each; eight channels of DDR5-4800; 128 GiB",
        ),
    ),
    Profile(
        name="cpu-amx",
        aliases=("xeon-8480", "sapphire-rapids"),
        device=cpu(
            "Intel Xeon Platinum 8480+",
            "x86_64",
            "sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 "
            "amx_tile amx_bf16 amx_int8",
            units=56,
            memory_bytes=512 * GIB,
            bandwidth=307.2e9,
            peak_flops=peaks(float32=7.168, float64=3.584, bfloat16=114.7),
            source="Intel: 56 cores at 2.0 GHz, two 512-bit FMA each, 1024 operations in bfloat16 a clock in AMX; "
            "eight channels of DDR5-4800; 512 GiB assumed",
        ),
    ),
    Profile(
        name="epyc-9654",
        aliases=("epyc", "genoa"),
        device=cpu(
            "AMD EPYC 9654",
            "x86_64",
            "sse4_2 avx f16c fma avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16",
            units=96,
            memory_bytes=768 * GIB,
            bandwidth=460.8e9,
            peak_flops=peaks(float32=7.3728, float64=3.6864),
            source="AMD: 96 cores at 2.4 GHz, two FMA each on 256 bits a clock; twelve channels of DDR5-4800; 768 GiB "
            "assumed",
        ),
    ),
)
