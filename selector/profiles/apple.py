"""The GPUs of Apple's chips. Apple states bandwidths and no rates, so there are none here."""

from __future__ import annotations

from .value import GIB, Profile, mps

APPLE = (
    Profile(
        name="m4-max",
        pattern=r"Apple M4 Max",
        device=mps(
            "Apple M4 Max",
            units=40,
            memory_bytes=128 * GIB,
            bandwidth=546e9,
            source="Apple newsroom, 2024-10-30: M4 Max with 40 GPU cores and the most memory it is sold with",
        ),
    ),
    Profile(
        name="m3-ultra",
        pattern=r"Apple M3 Ultra",
        device=mps(
            "Apple M3 Ultra",
            units=80,
            memory_bytes=512 * GIB,
            bandwidth=819e9,
            source="Apple Mac Studio technical specifications, 2025: M3 Ultra with 80 GPU cores and the most memory it "
            "was sold with",
        ),
    ),
)
