"""Backends that are deliberately slow or wrong, installed as somebody's package."""

from __future__ import annotations

import os

import pytest

from support.plugins import write_distribution

KERNELS = """
import ctypes
import os
import time
from headstock.backends.sdpa import SdpaBackend

class Slow(SdpaBackend):
    def forward(self, layer, query, **rest):
        start = time.perf_counter()
        super().forward(layer, query, **rest)
        end = time.perf_counter()
        while time.perf_counter() < end + 4 * (end - start):
            pass

class Wrong(SdpaBackend):
    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        out.mul_(1.5)

class Subtle(SdpaBackend):
    '''Right for plain layers: only the kit sees that windows are off by one.'''

    def __init__(self, spec, *rest):
        from dataclasses import replace
        if spec.window is not None:
            spec = replace(spec, window=(spec.window[0] + 1, spec.window[1]))
        super().__init__(spec, *rest)

class Broken(SdpaBackend):
    def forward(self, layer, query, **rest):
        raise RuntimeError("no kernel image is available")

class Dying(SdpaBackend):
    calls = 0

    def forward(self, layer, query, **rest):
        Dying.calls += 1
        if Dying.calls > 60:
            os.write(2, b"segmentation fault\\n")
            os._exit(139)
        super().forward(layer, query, **rest)

class Later(SdpaBackend):
    '''Calls `at` when it has been called a few times.'''
    calls = 0

    def forward(self, layer, query, *, out, **rest):
        self.calls += 1
        super().forward(layer, query, out=out, **rest)
        if self.calls > 5:
            self.at(out)

class Crashing(Later):
    def at(self, out):
        ctypes.string_at(0)

class Ending(Later):
    def at(self, out):
        os._exit(0)

class Hanging(Later):
    def at(self, out):
        time.sleep(1000)

class Drifting(Later):
    def at(self, out):
        out.mul_(1.5)

class Remembering(SdpaBackend):
    known = None

    def forward(self, layer, query, *, out, **rest):
        if self.known is None:
            super().forward(layer, query, out=out, **rest)
            self.known = out.clone()
        out.copy_(self.known)

class Leaking(SdpaBackend):
    kept = []

    def forward(self, layer, query, **rest):
        super().forward(layer, query, **rest)
        self.kept.append(bytes(bytearray(os.urandom(1)) * 2**20))

class Talking(SdpaBackend):
    def forward(self, layer, query, **rest):
        super().forward(layer, query, **rest)
        print("{not json")
        os.write(1, b"straight to stdout\\n")

class Glacial(SdpaBackend):
    def forward(self, layer, query, **rest):
        super().forward(layer, query, **rest)
        time.sleep(2.1)

class Narrow(SdpaBackend):
    @classmethod
    def capabilities(cls, device):
        from dataclasses import replace
        return replace(SdpaBackend.capabilities(device), dtypes=frozenset({"float16"}))
"""
NAMES = {
    name.lower(): name
    for name in (
        "Slow", "Wrong", "Subtle", "Broken", "Dying", "Crashing", "Ending", "Hanging", "Drifting", "Remembering",
        "Leaking", "Talking", "Glacial", "Narrow",
    )
}  # fmt: skip


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The package `kernels`, on the path of this process and of those it starts."""
    site = tmp_path / "site"
    site.mkdir()
    backends = {name: f"ab_kernels:{cls}" for name, cls in NAMES.items()}
    write_distribution(site, "kernels", "0.3", backends=backends, modules={"ab_kernels": KERNELS})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return site
