"""Headstock: attention backends as plugins, and an engine that serves real models through them.

Nothing is imported at load (PEP 562): ``import headstock`` costs next to nothing, and public names arrive on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.attention import AttentionBackend as AttentionBackend
    from .core.outputs import CompletionOutput as CompletionOutput
    from .core.outputs import RequestOutput as RequestOutput
    from .core.params import SamplingParams as SamplingParams
    from .core.version import __version__ as __version__
    from .entrypoints.async_llm import AsyncLLM as AsyncLLM
    from .entrypoints.llm import LLM as LLM

__all__ = ["LLM", "AsyncLLM", "AttentionBackend", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": ".entrypoints.llm",
    "AsyncLLM": ".entrypoints.async_llm",
    "AttentionBackend": ".core.attention",
    "CompletionOutput": ".core.outputs",
    "RequestOutput": ".core.outputs",
    "SamplingParams": ".core.params",
    "__version__": ".core.version",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headstock' has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
