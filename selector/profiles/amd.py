"""AMD's cards. Rates are dense, of the matrix cores where there are any for the dtype; float64 is the vector rate."""

from __future__ import annotations

from .value import GIB, Profile, peaks, rocm

AMD = (
    Profile(
        name="mi250x",
        pattern=r"AMD Instinct MI250X.*",
        device=rocm(
            "AMD Instinct MI250X",
            "gfx90a",
            units=110,
            memory_bytes=64 * GIB,
            bandwidth=1.6384e12,
            peak_flops=peaks(float64=23.95, float32=47.85, bfloat16=191.5, float16=191.5),
            source="AMD Instinct MI250X datasheet, half of it: systems see each of the card's two dies as a device",
        ),
    ),
    Profile(
        name="mi300x",
        pattern=r"AMD Instinct MI300X.*",
        device=rocm(
            "AMD Instinct MI300X",
            "gfx942",
            units=304,
            memory_bytes=192 * GIB,
            bandwidth=5.3e12,
            peak_flops=peaks(float64=81.7, float32=163.4, bfloat16=1307.4, float16=1307.4, float8_e4m3fnuz=2614.9),
            source="AMD Instinct MI300X datasheet; dense",
        ),
    ),
    Profile(
        name="mi325x",
        pattern=r"AMD Instinct MI325X.*",
        device=rocm(
            "AMD Instinct MI325X",
            "gfx942",
            units=304,
            memory_bytes=256 * GIB,
            bandwidth=6.0e12,
            peak_flops=peaks(float64=81.7, float32=163.4, bfloat16=1307.4, float16=1307.4, float8_e4m3fnuz=2614.9),
            source="AMD Instinct MI325X datasheet (amd.com/en/products/accelerators/instinct/mi300/mi325x.html); dense",
        ),
    ),
    Profile(
        name="mi355x",
        pattern=r"AMD Instinct MI355X.*",
        device=rocm(
            "AMD Instinct MI355X",
            "gfx950",
            units=256,
            memory_bytes=288 * GIB,
            bandwidth=8.0e12,
            peak_flops=peaks(float64=78.6, float32=157.3, bfloat16=2516.6, float16=2516.6, float8_e4m3fn=5033.2),
            source="AMD Instinct MI355X datasheet (amd.com/en/products/accelerators/instinct/mi350/mi355x.html) and "
            "CDNA 4 white paper: 256 units at 2.4 GHz, 8192 operations in FP8 a clock",
        ),
    ),
    Profile(
        name="rx7900xtx",
        aliases=("7900xtx", "radeon-rx-7900-xtx"),
        pattern=r"AMD Radeon RX 7900 XTX",
        device=rocm(
            "AMD Radeon RX 7900 XTX",
            "gfx1100",
            units=96,
            memory_bytes=24 * GIB,
            bandwidth=960e9,
            peak_flops=peaks(float32=61.4, bfloat16=122.8, float16=122.8),
            source="AMD Radeon RX 7900 XTX product page: 96 units at 2.5 GHz; float64 is not stated there",
        ),
    ),
    Profile(
        name="rx9070xt",
        aliases=("9070xt", "radeon-rx-9070-xt"),
        pattern=r"AMD Radeon RX 9070 XT",
        device=rocm(
            "AMD Radeon RX 9070 XT",
            "gfx1201",
            units=64,
            memory_bytes=16 * GIB,
            bandwidth=640e9,
            peak_flops=peaks(float32=48.7, bfloat16=195, float16=195, float8_e4m3fn=389),
            source="AMD Radeon RX 9070 XT product page, matrix rates without sparsity; float64 is not stated there",
        ),
    ),
)
