"""What Linux and macOS tell about the host: its CPUs, its memory, and what a container leaves of them."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_X86 = "sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16"
_AMX_AND_ARM = "amx_tile amx_bf16 amx_int8 asimd asimdhp asimddp bf16 i8mm sve sve2 sme"
INSTRUCTION_SETS = frozenset(f"{_X86} {_AMX_AND_ARM}".split())
"""What kernels ask for, in the words of Linux."""
ARM_PARTS = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
}
"""ARM's cpuinfo has numbers (implementer, part) instead of a name."""
MAC_FEATURES = {"FEAT_BF16": "bf16", "FEAT_I8MM": "i8mm", "FEAT_DotProd": "asimddp", "FEAT_SME": "sme"}


def cpu_info(root: Path = ROOT) -> tuple[str, frozenset[str]]:
    """Name and instruction sets of the CPU, from ``/proc/cpuinfo``; ``""`` and none where there is no such file."""
    info: dict[str, str] = {}
    for line in _lines(root / "proc/cpuinfo"):
        field, _, value = line.partition(":")
        info.setdefault(field.strip(), value.strip())
    name = info.get("model name") or ARM_PARTS.get((info.get("CPU implementer", ""), info.get("CPU part", "")), "")
    features = info.get("flags") or info.get("Features", "")
    return name, INSTRUCTION_SETS & set(features.split())


def mac_cpu_info(arch: str) -> tuple[str, frozenset[str]]:
    """The same on macOS, from sysctl."""
    name = sysctl("machdep.cpu.brand_string")
    if arch == "aarch64":
        optional = {ours for theirs, ours in MAC_FEATURES.items() if sysctl(f"hw.optional.arm.{theirs}") == "1"}
        return name, frozenset({"asimd"} | optional)
    flags = f"{sysctl('machdep.cpu.features')} {sysctl('machdep.cpu.leaf7_features')}".casefold()
    return name, INSTRUCTION_SETS & set(flags.replace("avx1.0", "avx").replace("sse4.2", "sse4_2").split())


def sysctl(name: str) -> str:
    """A value of macOS's sysctl; ``""`` where it has none of that name."""
    return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False).stdout.strip()


def memory_bytes(root: Path = ROOT) -> int:
    """Memory of the host, or what the cgroups of this process leave of it."""
    total = 0
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    total = total or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [
        int(text)
        for folder in _cgroups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _text(folder / name)).isdigit()
    ]
    return min([total, *limits])


def cpu_count(root: Path = ROOT) -> int:
    """CPUs this process may run on, or the share of them that its cgroups leave, rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas: list[int] = []
    for folder in _cgroups(root, "cpu"):
        words = _text(folder / "cpu.max").split() or [
            _text(folder / "cpu.cfs_quota_us"),
            _text(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(math.ceil(int(words[0]) / int(words[1])))
    return max(1, min([allowed, *quotas]))


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the cgroups that this process is in, innermost first: version 2's, and version 1's of `controller`.

    Inside a container the path is often the host's and names nothing; its ancestors still hold.
    """
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controller if controllers else mount
        inner = top / path.strip().lstrip("/")
        yield inner
        yield from (folder for folder in inner.parents if folder.is_relative_to(top))


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    """Contents of a file of the kernel; ``""`` where it is not there or not for us to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
