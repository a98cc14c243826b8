"""What is installed: the entry points of our groups, read from metadata. Nothing is imported here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ..core.version import __version__
from .names import AUTO, key
from .record import AITER_OPS, BACKENDS, HOOKS, PluginRecord
from .switches import HEADSTOCK, Switches

CHECKOUT = Path(__file__).resolve().parents[1] / "pyproject.toml"
"""In an editable install it stands beside the package, and says what the metadata should."""
GROUPS = (BACKENDS, HOOKS, AITER_OPS)
STALE = "the installed metadata of headstock are older than its source and do not name it; reinstall: pip install -e ."


def discover(switches: Switches) -> tuple[PluginRecord, ...]:
    """A record for each entry point, in an order that does not depend on the order of discovery."""
    records = [record for dist in _offering() for record in _read(dist, switches)]
    records = _with_stale(records, _declared(CHECKOUT))
    return tuple(sorted(records, key=lambda r: (r.group, key(r.name), not r.builtin, r.distribution, r.target)))


def _offering() -> Iterator[metadata.Distribution]:
    """The distributions that mention us, each once: the first on the path, as that is the one Python imports."""
    seen: set[str] = set()
    for dist in metadata.distributions():
        leftover = _folder(dist).startswith("~")  # of an uninstall that pip did not finish
        if not leftover and "[headstock" in (dist.read_text("entry_points.txt") or "").replace(" ", ""):
            name = canonicalize_name(_name(dist))
            if name not in seen:
                seen.add(name)
                yield _effective(name, dist)


def _effective(name: str, found: metadata.Distribution) -> metadata.Distribution:
    """The copy of a distribution that counts.

    Of ourselves it is the installed one: the egg-info that a build leaves in the checkout grows stale, and comes first
    on the path of every process that is started there.
    """
    copies = list(metadata.distributions(name=name)) or [found]
    if name == HEADSTOCK:
        return next((copy for copy in copies if copy.read_text("METADATA") is not None), copies[0])
    return copies[0]


def _name(dist: metadata.Distribution) -> str:
    """Name of a distribution; that of its folder where its metadata are broken."""
    try:
        name = str(dist.metadata["Name"] or "")
    except Exception:
        name = ""
    return name or _folder(dist).split("-")[0]


def _folder(dist: metadata.Distribution) -> str:
    """Name of the folder that holds the metadata, where they are in one."""
    return Path(str(getattr(dist, "_path", "unknown"))).name


def _read(dist: metadata.Distribution, switches: Switches) -> Iterator[PluginRecord]:
    """The records of one distribution; a single failed one where its metadata cannot be read."""
    name = _name(dist)
    try:
        version, needs = dist.version, dist.requires or []
        listed = [(e.group, e.name, e.value) for e in dist.entry_points if e.group in GROUPS]
    except Exception as error:
        reason = f"its metadata cannot be read: {type(error).__name__}: {error}"
        yield PluginRecord(
            group=HOOKS, name=name, target="", distribution=name, version="", status="failed", reason=reason
        )
        return
    disabled = switches.objection(name)
    points = {(group, key(point), target): point for group, point, target in sorted(listed)}
    for (group, _, target), point in points.items():
        record = PluginRecord(group=group, name=point, target=target, distribution=name, version=version)
        refusal = _refusal(record, needs)
        yield PluginRecord(
            group=group,
            name=point,
            target=target,
            distribution=name,
            version=version,
            status="disabled" if disabled else "refused" if refusal else "not loaded",
            reason=disabled or refusal,
        )


def _refusal(record: PluginRecord, needs: Iterable[str]) -> str:
    """Why it must not even be imported; empty where it may."""
    if record.group == BACKENDS and key(record.name) == AUTO:
        return f"no backend can be called {AUTO!r}, which stands for the automatic choice"
    if record.group == BACKENDS and ":" in record.name:
        return f"the name {record.name!r} has a colon, which stands between package and name"
    if record.builtin:
        return ""
    for text in needs:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue  # pip did not install that either; it names a package we cannot know
        applies = need.marker is None or need.marker.evaluate({"extra": ""})
        if canonicalize_name(need.name) == HEADSTOCK and applies and not _satisfied(need):
            return (
                f"{record.package} needs headstock {need.specifier}, and this is headstock {__version__}; "
                f"install a version of {record.distribution} for it, or that headstock"
            )
    return ""


def _satisfied(need: Requirement) -> bool:
    return need.specifier.contains(__version__, prereleases=True)


def _declared(pyproject: Path) -> dict[str, str]:
    """The built-in backends as the checkout declares them; nothing in an ordinary install."""
    if not pyproject.is_file():
        return {}
    project = tomllib.loads(pyproject.read_text("utf-8")).get("project", {})
    return project.get("entry-points", {}).get(BACKENDS, {}) if project.get("name") == HEADSTOCK else {}


def _with_stale(records: list[PluginRecord], declared: dict[str, str]) -> list[PluginRecord]:
    """`records`, with a failed one for each built-in that the checkout declares and the metadata lack."""
    own = {(r.name, r.target) for r in records if r.builtin and r.group == BACKENDS}
    missing = {name: target for name, target in declared.items() if (name, target) not in own}
    kept = [r for r in records if not (r.builtin and r.group == BACKENDS and r.name in missing)]
    return kept + [
        PluginRecord(
            group=BACKENDS,
            name=name,
            target=target,
            distribution=HEADSTOCK,
            version=__version__,
            status="failed",
            reason=STALE,
        )
        for name, target in missing.items()
    ]
