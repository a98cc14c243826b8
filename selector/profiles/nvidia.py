"""NVIDIA's cards. Rates are dense; float32 without TF32; of cards for desktops, accumulating in float32."""

from __future__ import annotations

from .value import GIB, Profile, cuda, peaks

NVIDIA = (
    Profile(
        name="a100-80gb",
        aliases=("a100", "a100-sxm-80gb"),
        pattern=r"NVIDIA A100-SXM4-80GB",
        device=cuda(
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            units=108,
            memory_bytes=80 * GIB,
            bandwidth=2.039e12,
            peak_flops=peaks(float64=9.7, float32=19.5, bfloat16=312, float16=312),
            source="NVIDIA A100 datasheet, SXM 80 GB; float32 without TF32",
        ),
    ),
    Profile(
        name="a100-40gb",
        aliases=("a100-sxm-40gb",),
        pattern=r"NVIDIA A100-SXM4-40GB",
        device=cuda(
            "NVIDIA A100-SXM4-40GB",
            (8, 0),
            units=108,
            memory_bytes=40 * GIB,
            bandwidth=1.555e12,
            peak_flops=peaks(float64=9.7, float32=19.5, bfloat16=312, float16=312),
            source="NVIDIA A100 datasheet, SXM 40 GB; float32 without TF32",
        ),
    ),
    Profile(
        name="h100-sxm",
        aliases=("h100", "h100-80gb"),
        pattern=r"NVIDIA H100 80GB HBM3",
        device=cuda(
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            units=132,
            memory_bytes=80 * GIB,
            bandwidth=3.35e12,
            peak_flops=peaks(float64=33.5, float32=66.9, bfloat16=989.4, float16=989.4, float8_e4m3fn=1978.9),
            source="NVIDIA H100 architecture white paper and datasheet, SXM5; dense, float32 without TF32",
        ),
    ),
    Profile(
        name="h100-pcie",
        pattern=r"NVIDIA H100 PCIe",
        device=cuda(
            "NVIDIA H100 PCIe",
            (9, 0),
            units=114,
            memory_bytes=80 * GIB,
            bandwidth=2.0e12,
            peak_flops=peaks(float64=25.6, float32=51.2, bfloat16=756, float16=756, float8_e4m3fn=1513),
            source="NVIDIA H100 architecture white paper and datasheet, PCIe; dense, float32 without TF32",
        ),
    ),
    Profile(
        name="h200",
        aliases=("h200-sxm", "h200-141gb"),
        pattern=r"NVIDIA H200",
        device=cuda(
            "NVIDIA H200",
            (9, 0),
            units=132,
            memory_bytes=141 * GIB,
            bandwidth=4.8e12,
            peak_flops=peaks(float64=33.5, float32=66.9, bfloat16=989.4, float16=989.4, float8_e4m3fn=1978.9),
            source="NVIDIA H200 datasheet, SXM (nvidia.com/en-us/data-center/h200); its processor is the H100's",
        ),
    ),
    Profile(
        name="b200",
        pattern=r"NVIDIA B200",
        device=cuda(
            "NVIDIA B200",
            (10, 0),
            units=148,
            memory_bytes=180 * GIB,
            bandwidth=8.0e12,
            peak_flops=peaks(float64=37, float32=75, bfloat16=2250, float16=2250, float8_e4m3fn=4500),
            source="NVIDIA DGX B200 datasheet, an eighth of the system; dense; units as the driver reports them",
        ),
    ),
    Profile(
        name="l4",
        pattern=r"NVIDIA L4",
        device=cuda(
            "NVIDIA L4",
            (8, 9),
            units=58,
            memory_bytes=24 * GIB,
            bandwidth=300e9,
            peak_flops=peaks(float32=30.3, bfloat16=121, float16=121, float8_e4m3fn=242.5),
            source="NVIDIA L4 datasheet (nvidia.com/en-us/data-center/l4): half of the rates with sparsity; "
            "float32 without TF32",
        ),
    ),
    Profile(
        name="rtx4090",
        aliases=("4090", "geforce-rtx-4090"),
        pattern=r"NVIDIA GeForce RTX 4090",
        device=cuda(
            "NVIDIA GeForce RTX 4090",
            (8, 9),
            units=128,
            memory_bytes=24 * GIB,
            bandwidth=1.008e12,
            peak_flops=peaks(float64=1.29, float32=82.6, bfloat16=165.2, float16=165.2, float8_e4m3fn=330.3),
            source="NVIDIA Ada architecture white paper; dense, accumulating in float32, float32 without TF32",
        ),
    ),
    Profile(
        name="rtx5090",
        aliases=("5090", "geforce-rtx-5090"),
        pattern=r"NVIDIA GeForce RTX 5090",
        device=cuda(
            "NVIDIA GeForce RTX 5090",
            (12, 0),
            units=170,
            memory_bytes=32 * GIB,
            bandwidth=1.792e12,
            peak_flops=peaks(float64=1.64, float32=104.8, bfloat16=209.5, float16=209.5, float8_e4m3fn=419),
            source="NVIDIA RTX Blackwell architecture white paper: a quarter of 838 Tflop/s, which are with sparsity "
            "and accumulate in float16; float32 without TF32",
        ),
    ),
)
