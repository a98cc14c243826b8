"""Backends for AMD's cards, over AITER (`.._aiter_ops`)."""

from .fa import AiterFlashAttention
from .unified import AiterUnified

__all__ = ["AiterFlashAttention", "AiterUnified"]
