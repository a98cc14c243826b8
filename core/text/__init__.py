"""Text at the engine's edge: tokenizer, chat template, incremental detokenizer, stop strings."""

from __future__ import annotations

from .chat import ChatTemplate
from .detokenizer import IncrementalDetokenizer
from .stop import StopMatch, StopStrings
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "StopMatch", "StopStrings", "Tokenizer"]
