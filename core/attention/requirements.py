"""Whether a backend's packages are on this machine, as values instead of exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A distribution and the versions of it that will do."""

    package: str
    """Name on PyPI: ``"amd-aiter"``, not the unrelated ``"aiter"``."""
    versions: str = ""
    """PEP 440 specifier, e.g. ``">=2.8,<2.9"``; empty takes any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a backend can run on this machine, and why not."""

    reasons: tuple[str, ...] = ()
    """All of them; empty means available."""

    @property
    def available(self) -> bool:
        return not self.reasons


def check_requirements(requirements: Iterable[Requirement]) -> Availability:
    """Hold each requirement against the installed distributions."""
    return Availability(reasons=tuple(reason for r in requirements if (reason := _missing(r))))


def _missing(requirement: Requirement) -> str | None:
    try:
        version = metadata.version(requirement.package)
    except metadata.PackageNotFoundError:
        return f"package {requirement.package} is not installed"
    if not SpecifierSet(requirement.versions, prereleases=True).contains(version):
        return f"package {requirement.package} is {version}, needed is {requirement.versions}"
    return None
