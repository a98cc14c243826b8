"""The file of `headstock tune`: its entries, what they hold for, reading and writing."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from ..core.attention import AttentionSpec, Device, read_spec, spec_document
from ..core.version import __version__
from ..plugins.environment import data_folder
from .policy import PHASES

FORMAT, VERSION = "headstock.tuned", 2
SCHEMA = f"{FORMAT}/{VERSION}"
MOST_BYTES = 16 * 2**20
"""A kind of layer takes a few KiB: what is larger is no such file."""
DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
PLAIN_BLOCK = 16
"""Block size of the specs in a file: the choice does not depend on it."""
UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading and understanding a file can raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A backend of the automatic order that was here when the file was made."""

    package: str
    """Distribution and version."""
    source_hash: str
    """Of its source files then."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its fastest configuration, of those it offers; empty is its own defaults."""
    reason: str = ""
    """Why it did not count: it was left out, does not fit, was wrong or failed; empty where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedEntry:
    """The backend for layers of one spec in one phase."""

    spec: AttentionSpec
    """With `block_size` 16."""
    phase: str
    """``"decode"`` or ``"prefill"``."""
    backend: str
    """The winner, one of `tried`."""
    tried: Mapping[str, Tried]
    """By name, all that were here: what came later is not among them."""
    against: str
    """The backend that the ranking would have given; the same where nothing was shown to be faster."""
    ratio: float
    """How many times faster than that."""
    low: float
    high: float
    """95 % interval of `ratio`."""
    regimes: Mapping[str, Mapping[str, float]]
    """Shape → microseconds by backend."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "spec": spec_document(self.spec)}


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
        "libraries": dict(device.libraries),
        "headstock": __version__,
    }


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what two fingerprints differ in. A library that was not there then is no change: what it brings was not
    measured, and is told of as such."""
    found = [name for name in now if name != "libraries" and then.get(name) != now[name]]
    words = [f"{name} was {then.get(name)!r} and is {now[name]!r}" for name in found]
    for name, version in then["libraries"].items():
        if (today := now["libraries"].get(name)) != version:
            words.append(f"{name} was {version} and is {today or 'not installed'}")
    return words


def read_tuned(path: Path) -> tuple[dict[str, Any], tuple[TunedEntry, ...]]:
    """Fingerprint and entries of a file; raises one of `UNREADABLE` with what is wrong."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is no plain file")  # a pipe would never end
    if about.st_size > MOST_BYTES:
        raise ValueError(f"it has {about.st_size / 2**20:.0f} MiB, and no such file has more than {MOST_BYTES >> 20}")
    document = json.loads(path.read_text(encoding="utf-8"))
    schema = document["schema"]
    if schema != SCHEMA:
        kind, _, version = str(schema).partition("/")
        newer = kind == FORMAT and version.isdigit() and int(version) > VERSION
        raise ValueError(f"its schema is {schema!r}, {'of a newer Headstock' if newer else f'not {SCHEMA!r}'}")
    marks = _mapping(document["fingerprint"], "fingerprint")
    _mapping(marks["libraries"], "libraries")
    return marks, tuple(_entry(values) for values in document["entries"])


def write_tuned(path: Path, marks: Mapping[str, Any], entries: Sequence[TunedEntry]) -> None:
    """Put `entries` into the file, in place of older ones for the same layers and phases. The file appears whole.

    What the file holds of another machine or version is dropped. Raises `OSError` where it cannot be written.
    """
    try:
        then, held = read_tuned(path)
        old = () if changes(then, marks) else held
    except UNREADABLE:
        old = ()  # there is none, or one that says nothing
    new = {(e.spec, e.phase): e for e in (*old, *entries)}
    document = {"schema": SCHEMA, "fingerprint": dict(marks), "entries": [e.to_dict() for e in new.values()]}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _entry(values: Mapping[str, Any]) -> TunedEntry:
    """Raises `ValueError` or `TypeError` for what is no entry: what is read later has to be what it seems."""
    tried = {name: _tried(name, one) for name, one in _mapping(values["tried"], "tried").items()}
    regimes = {
        shape: {name: _number(time, f"regimes[{shape}]") for name, time in _mapping(times, shape).items()}
        for shape, times in _mapping(values["regimes"], "regimes").items()
    }
    phase, backend = _text(values["phase"], "phase"), _text(values["backend"], "backend")
    if phase not in PHASES:
        raise ValueError(f"phase is {phase!r}")
    if backend not in tried:
        raise ValueError(f"{backend!r} was chosen and not tried")
    return TunedEntry(
        spec=read_spec(values["spec"]),
        phase=phase,
        backend=backend,
        tried=tried,
        against=_text(values["against"], "against"),
        ratio=_number(values["ratio"], "ratio"),
        low=_number(values["low"], "low"),
        high=_number(values["high"], "high"),
        regimes=regimes,
    )


def _tried(name: str, values: Any) -> Tried:
    one = Tried(**_mapping(values, name))
    _mapping(one.options, f"options of {name}")
    for text in (one.package, one.source_hash, one.reason):
        _text(text, name)
    return one


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r:.80}, no object")
    return cast("dict[str, Any]", value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r:.80}, no number")
    return float(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.80}, no text")
    return value


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError):
        return ""
