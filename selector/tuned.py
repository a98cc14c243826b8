"""What `headstock tune` measured on this machine, and what of it still holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..core.attention import AttentionSpec, Device, read_spec, spec_document
from ..core.version import __version__
from ..plugins import Plugins
from ..plugins.environment import TUNED, data_folder, read, truth
from ..plugins.sources import source_hash

SCHEMA = "headstock.tuned/1"
DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
PLAIN_BLOCK = 16
"""Block size of the specs in a file: the choice does not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A backend that was measured to be the one for a layer."""

    backend: str
    why: str
    """For the origin of the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedEntry:
    """The backend for layers of one spec in one phase."""

    spec: AttentionSpec
    """With `block_size` 16."""
    phase: str
    """``"decode"`` or ``"prefill"``."""
    backend: str
    package: str
    """Distribution and version that were measured."""
    source_hash: str
    """Of its source files then."""
    against: str
    """The backend that the ranking would have given; the same where nothing was shown to be faster."""
    ratio: float
    """How many times faster than that."""
    low: float
    high: float
    """95 % interval of `ratio`."""
    regimes: Mapping[str, Mapping[str, float]]
    """Shape → microseconds by backend."""


def default_path() -> Path:
    """In the user's data folder."""
    return data_folder() / "tuned.json"


def fingerprint(device: Device) -> dict[str, Any]:
    """What has to be as it was for measurements to hold: device, driver, versions."""
    return {
        "platform": device.platform,
        "name": device.name,
        "arch": device.arch,
        "units": device.units,
        "driver": next((text for path in DRIVERS if (text := _first_line(Path(path)))), ""),
        "torch": device.libraries.get("torch", ""),
        "headstock": __version__,
    }


class TunedTable:
    """Answers the selector from a file; what is stale or broken is left out with one warning."""

    def __init__(self, plugins: Plugins, path: Path, *, named: bool = False) -> None:
        """`named`: the user asked for this file, and wants to know where there is none."""
        self._named = named
        self._plugins = plugins
        self._path = path
        self._entries: tuple[TunedEntry, ...] | None = None
        self._held: dict[tuple[str, str, str], bool] = {}
        """Backend, package and hash that were measured → whether they are those of today."""

    def __call__(self, spec: AttentionSpec, device: Device, phase: str) -> Measured | None:
        """The backend that was measured for such layers, if any was and still counts."""
        if device.assumed:
            return None
        if self._entries is None:
            self._entries = self._read(device)
        plain = replace(spec, block_size=PLAIN_BLOCK)
        entry = next((e for e in self._entries if e.phase == phase and e.spec == plain), None)
        if entry is None:
            return None
        measured = (entry.backend, entry.package, entry.source_hash)
        if measured not in self._held:  # sources are hashed once, not for every layer
            self._held[measured] = self._holds(entry)
        if not self._held[measured]:
            return None
        gain = f"{entry.ratio:.2f} times as fast as {entry.against}" if entry.backend != entry.against else "as ranked"
        return Measured(backend=entry.backend, why=f"tuned (measured on this machine: {gain})")

    def _read(self, device: Device) -> tuple[TunedEntry, ...]:
        try:
            found = read_tuned(self._path)
        except FileNotFoundError:
            if self._named:
                self._warn("does not exist")
            return ()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._warn(f"cannot be read ({type(error).__name__}: {error})")
            return ()
        here = fingerprint(device)
        changed = [name for name in here if found["fingerprint"].get(name) != here[name]]
        if changed:
            was = ", ".join(f"{name} was {found['fingerprint'].get(name)!r}" for name in changed)
            self._warn(f"is of another machine or version: {was}")
            return ()
        return found["entries"]

    def _holds(self, entry: TunedEntry) -> bool:
        """Whether the backend is the one that was measured."""
        offer = self._plugins.backends.get(entry.backend)
        cls = offer.load() if offer is not None else None
        if offer is None or cls is None:
            self._warn(f"chose {entry.backend}, which is not here any more")
            return False
        if (offer.record.package, source_hash(cls)) != (entry.package, entry.source_hash):
            self._warn(f"measured {entry.backend} of {entry.package}, which has changed since")
            return False
        return True

    def _warn(self, problem: str) -> None:
        self._plugins.guard.warn(f"{self._path} is not used: it {problem}; run headstock tune again")


def installed_tuning(plugins: Plugins) -> TunedTable | None:
    """The table that `HEADSTOCK_TUNED` names, or the user's own; None where the variable says 0."""
    asked = read(TUNED)
    if asked and truth(asked) is False:
        return None
    return TunedTable(plugins, Path(asked).expanduser() if asked else default_path(), named=bool(asked))


def read_tuned(path: Path) -> dict[str, Any]:
    """``fingerprint`` and ``entries`` of a file; raises what reading and understanding it raises."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA!r}")
    return {
        "fingerprint": dict(document["fingerprint"]),
        "entries": tuple(_entry(values) for values in document["entries"]),
    }


def _entry(values: Mapping[str, Any]) -> TunedEntry:
    fields: dict[str, Any] = {**values, "spec": read_spec(values["spec"])}
    return TunedEntry(**fields)


def write_tuned(path: Path, marks: Mapping[str, Any], entries: Sequence[TunedEntry]) -> None:
    """Put `entries` into the file, in place of older ones for the same layers and phases. The file appears whole.

    What the file holds of another machine or version is dropped. Raises `OSError` where it cannot be written.
    """
    try:
        found = read_tuned(path)
        old = found["entries"] if found["fingerprint"] == dict(marks) else ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        old = ()  # there is none, or one that says nothing
    new = {(e.spec, e.phase): e for e in (*old, *entries)}
    document = {
        "schema": SCHEMA,
        "fingerprint": dict(marks),
        "entries": [{**asdict(e), "spec": spec_document(e.spec)} for e in new.values()],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError):
        return ""
