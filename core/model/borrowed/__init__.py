"""Models that run through transformers' own modelling code, with our attention in the place of theirs."""

from .config import BorrowedConfig
from .load import load_borrowed
from .reading import borrow, generates

__all__ = ["BorrowedConfig", "borrow", "generates", "load_borrowed"]
