"""torch's flex_attention over paged K and V: the backend that carries extra masks."""

from .backend import FlexAttention

__all__ = ["FlexAttention"]
