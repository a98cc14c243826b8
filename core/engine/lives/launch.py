"""`Launch`: what an engine outside of this process is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...version import __version__
from .codec import Setup
from .pulse import Vigil


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What an engine process is to run."""

    composer: str
    """``module:function``, called in the process with `payload`; gives the `EngineCore`."""
    payload: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables beside ours."""
    vigil: Vigil = field(default_factory=Vigil)

    @property
    def setup(self) -> Setup:
        """The part that the process is sent."""
        return Setup(version=__version__, composer=self.composer, payload=self.payload)
