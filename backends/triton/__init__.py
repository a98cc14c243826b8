"""Attention on CUDA and ROCm by kernels of our own, in Triton. `triton` itself is imported when an instance is made."""

from .backend import TritonBackend

__all__ = ["TritonBackend"]
