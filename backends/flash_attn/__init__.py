"""Dao-AILab's FlashAttention in its three generations: one adapter each, over what they share."""

from .fa2 import FlashAttention2
from .fa3 import FlashAttention3
from .fa4 import FlashAttention4

__all__ = ["FlashAttention2", "FlashAttention3", "FlashAttention4"]
