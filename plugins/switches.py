"""Which plugins the user lets in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from .environment import DISABLE_PLUGINS, PLUGINS, PLUGINS_STRICT, read, switched_on, truth

HEADSTOCK = "headstock"
"""Our own distribution: its backends are built in, and no switch keeps them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Distributions by name, in the form of PyPI (lower case, ``-``)."""

    only: frozenset[str] | None = None
    """The only ones let in; None lets in all."""
    off: frozenset[str] = frozenset()
    """Kept out."""
    all_off: bool = False
    """All are kept out."""
    strict: bool = False
    """A plugin that fails raises what it failed with."""

    def objection(self, distribution: str) -> str:
        """Why `distribution` is kept out; ``""`` where it is not."""
        name = canonicalize_name(distribution)
        if name == HEADSTOCK:
            return ""
        if self.all_off:
            return f"plugins are switched off ({DISABLE_PLUGINS} or --disable-plugins)"
        if name in self.off:
            return f"{name} is switched off ({DISABLE_PLUGINS} or --disable-plugins)"
        if self.only is not None and name not in self.only:
            return f"{PLUGINS} lets in only {', '.join(sorted(self.only))}"
        return ""

    def strangers(self, installed: Iterable[str]) -> tuple[str, ...]:
        """A warning for each name that a switch turns and that is none of the `installed` plugins."""
        known = {canonicalize_name(name) for name in installed} - {HEADSTOCK}
        offer = f"installed are: {', '.join(sorted(known)) or 'none'}"
        unknown = {PLUGINS: (self.only or frozenset[str]()) - {HEADSTOCK}, DISABLE_PLUGINS: self.off}
        return tuple(
            f"{switch} names {name}, which is no installed plugin; {offer}"
            for switch, names in unknown.items()
            for name in sorted(names - known)
        )


def read_switches(environ: Mapping[str, str] | None = None) -> Switches:
    """The switches of the environment; raises `InvalidInput` for one that is neither on nor off."""
    only, off = read(PLUGINS, environ), read(DISABLE_PLUGINS, environ)
    return Switches(
        only=_names(only) if only else None,
        off=_names(off) if truth(off) is None else frozenset(),
        all_off=truth(off) is True,
        strict=switched_on(PLUGINS_STRICT, environ),
    )


def _names(value: str) -> frozenset[str]:
    return frozenset(canonicalize_name(name.strip()) for name in value.split(",") if name.strip())
