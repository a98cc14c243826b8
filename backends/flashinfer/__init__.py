"""FlashInfer, through its wrappers for paged caches."""

from .backend import FlashInfer

__all__ = ["FlashInfer"]
