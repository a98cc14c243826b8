"""A card that is not here, for whole programs: a package on the path brings it, and the library's double with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstock.core.attention import Device
from headstock.core.worker import worker

from .plugins import forget_modules, write_distribution
from .tree import ROOT

AITER = "0.1.20.post1"
CARD = """
import functools, sys, time
from dataclasses import replace
from headstock.core.attention import Device
from headstock.core.worker import worker
from headstock.plugins import hookimpl
from headstock.selector.devices import installed_libraries
from headstock.selector.profiles import profile
from support.doubles import aiter
from support.graphs import Recorder


def delayed(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        time.sleep({delay})
        return function(*args, **kwargs)

    return call


sys.modules.update(aiter.aiter())
module = sys.modules["aiter.ops.attention"]
module.paged_attention_v1 = delayed(module.paged_attention_v1)
worker.recorder_for = lambda device: Recorder()
Device.torch_device = property(lambda device: "cpu")  # of values, too, that come from another process


@hookimpl
def headstock_device_probes():
    here = {{"assumed": False, "memory_bytes": 2**32, "libraries": installed_libraries()}}
    return [lambda: [replace(profile("mi300x"), **here)]]
"""


@contextmanager
def mi300x(site: Path, patch: pytest.MonkeyPatch, *, delay: float = 0.0) -> Iterator[Path]:
    """The best device of this machine is an MI300X with AITER, for this process and those that it starts.

    Its memory is the host's, its graphs are those of `graphs.Recorder`, and AITER is the double, whose paged attention
    takes `delay` seconds longer than it does. Gives `site`, which is on the path for further modules.
    """
    site.mkdir()
    write_distribution(site, "amd-aiter", AITER)
    modules = {"pretended_card": CARD.format(delay=delay)}
    write_distribution(site, "pretended", hooks={"card": "pretended_card"}, modules=modules)
    patch.setattr(worker, "recorder_for", worker.recorder_for)  # the package replaces this and the next
    patch.setattr(Device, "torch_device", vars(Device)["torch_device"])
    before = set(sys.modules)
    patch.syspath_prepend(str(site))
    path = [str(site), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    yield site
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "aiter":
            del sys.modules[name]
    forget_modules(site)
