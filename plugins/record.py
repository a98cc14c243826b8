"""`PluginRecord`: what is known about one entry point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from .switches import HEADSTOCK

BACKENDS = "headstock.backends"
"""Entry-point group: name → backend class."""
HOOKS = "headstock"
"""Entry-point group: name → module with hook implementations."""
AITER_OPS = "headstock.aiter_ops"
"""Entry-point group: op of AITER's → function that takes its place (docs/try-an-amd-kernel.md)."""

Status = Literal["not loaded", "loaded", "failed", "refused", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """One entry point, and how it fared."""

    group: str
    """`BACKENDS`, `HOOKS` or `AITER_OPS`."""
    name: str
    """As the entry point has it."""
    target: str
    """What it names: ``"package.module:Class"``."""
    distribution: str
    """Package that offers it."""
    version: str
    status: Status = "not loaded"
    """``"failed"``: its code raised; ``"refused"``: made for another Headstock, or not what it says to be;
    ``"disabled"``: the user keeps it out."""
    reason: str = ""
    """Why it cannot be used; empty where it can."""

    @property
    def package(self) -> str:
        """Distribution and version."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def complaint(self) -> str:
        """What to warn of where it cannot be used; the same for all entry points of a package that fail alike."""
        return f"a plugin of {self.package} is left out ({self.status}): {self.reason}"

    @property
    def builtin(self) -> bool:
        """Whether it is Headstock's own."""
        return canonicalize_name(self.distribution) == HEADSTOCK
