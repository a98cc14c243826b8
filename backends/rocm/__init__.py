"""Backends for AMD's cards, over AITER (`.._aiter_ops`) and, without it, over our own Triton kernels."""

from .attn import RocmAttention
from .fa import AiterFlashAttention, ShuffledFlashAttention
from .unified import AiterUnified

__all__ = ["AiterFlashAttention", "AiterUnified", "RocmAttention", "ShuffledFlashAttention"]
