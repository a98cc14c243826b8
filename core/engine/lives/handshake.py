"""What an engine process and the process that started it compare before anything is computed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ...errors import HeadstockError
from ...version import __version__
from .codec import PROTOCOL, Frames, Hello, Ready, Setup, decode_event, encode_word

HERE = str(Path(__file__).resolve().parents[3])
"""Where this headstock is imported from."""


def hello() -> Hello:
    """What this process says of itself."""
    return Hello(protocol=PROTOCOL, version=__version__, path=HERE, pid=os.getpid())


def check_hello(said: Hello) -> None:
    """In the process that asks: raise `HeadstockError` where the other one is of another version."""
    if (said.protocol, said.version) != (PROTOCOL, __version__):
        raise HeadstockError(
            f"the engine process runs headstock {said.version} (protocol {said.protocol}, from {said.path}), "
            f"and this process {__version__} (protocol {PROTOCOL}, from {HERE}). Install one version for both"
        )


def read_setup(frames: Frames) -> Setup:
    """In the engine process: the same, for the first thing that it is sent."""
    setup = decode_event(frames)
    if not isinstance(setup, Setup):
        raise HeadstockError("a set-up has to come first")
    if setup.version != __version__:
        raise HeadstockError(
            f"this engine process runs headstock {__version__} (from {HERE}) and is asked for by {setup.version}. "
            "Install one version for both"
        )
    return setup


def digest(setup: Setup) -> str:
    """SHA-256 of all that the set-up says."""
    return hashlib.sha256(encode_word(setup)[1]).hexdigest()


def check_ready(setup: Setup, said: Ready) -> None:
    """In the process that asks: raise `HeadstockError` where the engine runs something else than it was told."""
    if said.digest != digest(setup):
        raise HeadstockError(
            f"the engine process runs another configuration (digest {said.digest[:12]}) than it was sent "
            f"({digest(setup)[:12]})"
        )
