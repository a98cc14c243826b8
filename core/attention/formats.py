"""KV formats: how a K or V element is stored, by name, and the way in and out of the scaled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidInput

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFormat:
    """How one element of a K or V plane is stored."""

    name: str
    storage: str
    """Name of the torch dtype in memory."""
    element_bytes: int
    scaled: bool = False
    """Stored values are multiplied by a scale (`LayerParams.k_scale`, `v_scale`) when read."""


KV_FORMATS: dict[str, KVFormat] = {
    f.name: f
    for f in (
        KVFormat(name="fp64", storage="float64", element_bytes=8),
        KVFormat(name="fp32", storage="float32", element_bytes=4),
        KVFormat(name="bf16", storage="bfloat16", element_bytes=2),
        KVFormat(name="fp16", storage="float16", element_bytes=2),
        KVFormat(name="fp8_e4m3", storage="float8_e4m3fn", element_bytes=1, scaled=True),
        KVFormat(name="fp8_e4m3fnuz", storage="float8_e4m3fnuz", element_bytes=1, scaled=True),
        KVFormat(name="fp8_e5m2", storage="float8_e5m2", element_bytes=1, scaled=True),
        KVFormat(name="int8_per_tensor", storage="int8", element_bytes=1, scaled=True),
        KVFormat(name="int8_per_head", storage="int8", element_bytes=1, scaled=True),
    )
}
"""Every format the vocabulary knows; which of them a backend reads is in its `Capabilities.kv_formats`."""

DTYPE_FORMATS = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Compute dtype → the unscaled format that stores it as it is."""


def kv_format(name: str) -> KVFormat:
    """The format called `name`; raises `InvalidInput` listing the known ones."""
    if name not in KV_FORMATS:
        raise InvalidInput("kv_format", f"{name!r} is not known; known are {', '.join(KV_FORMATS)}")
    return KV_FORMATS[name]


def quantize(x: torch.Tensor, scale: torch.Tensor | None, storage: torch.dtype) -> torch.Tensor:
    """`x` (T, H, D) as stored: divided by `scale` (scalar or per head (H,)), saturated, and cast to `storage`."""
    import torch

    if x.dtype == storage:
        return x
    if storage.is_floating_point and storage.itemsize > 1:
        return x.to(storage)
    x = x.float()
    if scale is not None:
        x = x / scale.reshape(-1, 1)
    limits = torch.finfo(storage) if storage.is_floating_point else torch.iinfo(storage)
    if not storage.is_floating_point:
        x = x.round()
    return x.clamp(limits.min, limits.max).to(storage)


def dequantize(x: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Stored `x` (T, H, D) back in `dtype`, multiplied by `scale` (scalar or per head (H,)) where there is one."""
    if scale is None:
        return x.to(dtype)
    return (x.float() * scale.reshape(-1, 1)).to(dtype)
