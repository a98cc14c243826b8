"""Cards that are not here: what a backend is told, while its tensors stay on the CPU."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from headstock.core.attention import Device
from headstock.selector.profiles import profile


class Pretended(Device):
    """A card whose memory is the host's: `torch_device` is the only thing that gives it away."""

    __slots__ = ()

    @property
    def torch_device(self) -> str:
        return "cpu"


def pretend(name: str, **changes: Any) -> Device:
    """The device of the profile `name`, with these fields instead, for running a backend on the CPU."""
    device = profile(name)
    return Pretended(**{f.name: getattr(device, f.name) for f in fields(Device)} | changes)
