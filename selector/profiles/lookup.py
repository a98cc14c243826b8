"""Profiles by what people and drivers call them."""

from __future__ import annotations

import re

from ...core.attention import Device
from ...core.errors import InvalidInput
from ...plugins.names import nearest
from .amd import AMD
from .apple import APPLE
from .cpus import CPUS
from .intel import INTEL
from .nvidia import NVIDIA

PROFILES = (*NVIDIA, *AMD, *INTEL, *APPLE, *CPUS)


def profile(name: str) -> Device:
    """The device called `name`; raises `InvalidInput` with suggestions and all names."""
    known = {_squeeze(spelling): p for p in PROFILES for spelling in (p.name, *p.aliases)}
    found = known.get(_squeeze(name))
    if found is not None:
        return found.device
    near = nearest(name, [spelling for p in PROFILES for spelling in (p.name, *p.aliases)])
    advice = f" did you mean {' or '.join(near)}?" if near else ""
    raise InvalidInput(
        "device", f"{name!r} is no known device.{advice} Known are {', '.join(p.name for p in PROFILES)}"
    )


def profile_of(device: Device) -> Device | None:
    """The profile of a card found on this machine, by the name its driver gives it."""
    for p in PROFILES:
        if p.device.platform == device.platform and p.pattern and re.fullmatch(p.pattern, device.name):
            return p.device
    return None


def _squeeze(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.casefold())
