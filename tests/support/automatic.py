"""Which backend this machine gives whom nobody tells: `cpu` needs a compiler and a CPU that it was made for."""

from __future__ import annotations

from headstock.backends.cpu import CpuBackend
from headstock.core.attention import Capabilities
from headstock.plugins import Hooks
from headstock.selector import find_device

_RUNS = CpuBackend.availability().available and CpuBackend.capabilities(find_device("cpu", Hooks(()))) != Capabilities()
BACKEND = "cpu" if _RUNS else "sdpa"
LAYOUT = "hnd" if _RUNS else "nhd"
