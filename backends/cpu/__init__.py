"""Attention on CPUs by kernels of our own, in C++, compiled where they run."""

from .backend import CpuBackend

__all__ = ["CpuBackend"]
