"""Which KV formats the kernels read and write, by architecture, and what writing an 8-bit one needs to know."""

from __future__ import annotations

from typing import Any

import torch

from ...core.attention import Device

PLAIN = frozenset({"fp32", "bf16", "fp16", "int8_per_tensor", "int8_per_head"})
FP8 = frozenset({"fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2"})


def formats_on(device: Device) -> frozenset[str]:
    """Formats that have instructions on `device`: 8-bit floats with unsigned zero on CDNA 3, without elsewhere."""
    if device.platform == "cpu":
        return PLAIN | FP8
    if device.platform == "cuda":
        newer = device.capability is not None and device.capability >= (8, 9)
        return PLAIN | {"fp8_e5m2"} | ({"fp8_e4m3"} if newer else frozenset())
    if device.arch == "gfx942":
        return PLAIN | {"fp8_e4m3fnuz"}
    return PLAIN | ({"fp8_e4m3", "fp8_e5m2"} if device.arch.startswith(("gfx950", "gfx12")) else frozenset())


def storage_constants(dtype: torch.dtype) -> dict[str, Any]:
    """Range and precision of a stored `dtype`, as the writing kernel takes them; of no meaning for wider ones."""
    if dtype.itemsize > 1:
        return {"LOWEST": 0.0, "LARGEST": 0.0, "MANTISSA": 0, "LEAST": 0.0}
    if dtype == torch.int8:
        return {"LOWEST": -128.0, "LARGEST": 127.0, "MANTISSA": 0, "LEAST": 0.0}
    info = torch.finfo(dtype)
    bits = {0.125: 3, 0.25: 2}[info.eps]
    return {"LOWEST": info.min, "LARGEST": info.max, "MANTISSA": bits, "LEAST": info.smallest_normal * info.eps}
