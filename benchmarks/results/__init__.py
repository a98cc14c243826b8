"""The results store: what was measured, on which machine, by which versions, kept in one SQLite file."""

from .records import Measurement, Run
from .store import Store

__all__ = ["Measurement", "Run", "Store"]
