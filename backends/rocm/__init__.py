"""Backends for AMD's cards, over AITER (`.._aiter_ops`)."""

from .unified import AiterUnified

__all__ = ["AiterUnified"]
