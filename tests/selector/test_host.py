"""What is read of the host: CPUs, memory, and the share of them that a container leaves."""

from __future__ import annotations

import os

import pytest

from headstock.selector import host
from headstock.selector.devices import LIBRARIES, cpu_device

GIB = 2**30
XEON = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu sse4_2 avx f16c fma avx2 avx512f avx512bw avx512vl avx512_bf16 amx_tile amx_bf16 unheard_of

processor\t: 1
model name\t: another
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd asimddp sve i8mm bf16 dcpodp
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def tree(root, **files):
    """Files of a kernel under `root`; ``__`` in a name is ``/``."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_an_x86_cpu(tmp_path):
    root = tree(tmp_path, proc__cpuinfo=XEON, proc__meminfo="MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    device = cpu_device(root, machine="x86_64", system="linux")
    assert (device.platform, device.arch, device.name) == ("cpu", "x86_64", "Intel(R) Xeon(R) Platinum 8480+")
    assert device.memory_bytes == 16 * GIB
    assert {"avx512_bf16", "amx_tile", "avx2"} <= device.features
    assert not {"fpu", "unheard_of"} & device.features
    assert (device.bandwidth, device.peak_flops) == (None, {})  # not known without measuring
    assert not device.assumed


def test_an_arm_cpu_has_numbers_for_a_name(tmp_path):
    device = cpu_device(tree(tmp_path, proc__cpuinfo=GRAVITON), machine="aarch64", system="linux")
    assert (device.arch, device.name) == ("aarch64", "Arm Neoverse V1")
    assert device.features == {"asimd", "asimddp", "sve", "i8mm", "bf16"}


@pytest.mark.parametrize(
    ("machine", "facts", "arch", "features"),
    [
        (
            "arm64",
            {
                "machdep.cpu.brand_string": "Apple M4",
                "hw.optional.arm.FEAT_BF16": "1",
                "hw.optional.arm.FEAT_I8MM": "0",
            },
            "aarch64",
            {"asimd", "bf16"},
        ),
        (
            "x86_64",
            {
                "machdep.cpu.brand_string": "Intel(R) Core(TM) i7",
                "machdep.cpu.features": "FPU SSE4.2 FMA F16C AVX1.0",
                "machdep.cpu.leaf7_features": "BMI1 AVX2",
            },
            "x86_64",
            {"sse4_2", "fma", "f16c", "avx", "avx2"},
        ),
    ],
)
def test_a_mac(monkeypatch, tmp_path, machine, facts, arch, features):
    monkeypatch.setattr(host, "sysctl", lambda name: facts.get(name, ""))
    device = cpu_device(tmp_path, machine=machine, system="darwin")
    assert (device.arch, device.name, device.features) == (arch, facts["machdep.cpu.brand_string"], features)
    assert device.memory_bytes > 0


def test_amd64_is_x86_64():
    assert cpu_device(machine="AMD64").arch == "x86_64"


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 16),
        # version 2: a limit of the innermost, of one above it, of none, and a path that only the host knows
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__memory.max": f"{4 * GIB}\n"}, 4),
        (
            {
                "proc__self__cgroup": "0::/a/b\n",
                "sys__fs__cgroup__a__b__memory.max": "max\n",
                "sys__fs__cgroup__a__memory.max": f"{3 * GIB}\n",
            },
            3,
        ),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__memory.max": "max\n"}, 16),
        ({"proc__self__cgroup": "0::/docker/1234\n", "sys__fs__cgroup__memory.max": f"{2 * GIB}\n"}, 2),
        # version 1: its own hierarchy for each controller; "no limit" is a huge number
        (
            {
                "proc__self__cgroup": "4:memory:/a\n1:cpu,cpuacct:/c\n",
                "sys__fs__cgroup__memory__a__memory.limit_in_bytes": f"{GIB}\n",
            },
            1,
        ),
        (
            {
                "proc__self__cgroup": "4:memory:/a\n",
                "sys__fs__cgroup__memory__a__memory.limit_in_bytes": "9223372036854771712\n",
            },
            16,
        ),
        # a limit above what there is
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__memory.max": f"{64 * GIB}\n"}, 16),
    ],
)
def test_memory_is_what_cgroups_leave(tmp_path, files, gib):
    root = tree(tmp_path, proc__meminfo="MemTotal:       16777216 kB\n", **files)
    assert host.memory_bytes(root) == gib * GIB


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 8),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "max 100000\n"}, 8),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "200000 100000\n"}, 2),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "150000 100000\n"}, 2),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "10000 100000\n"}, 1),
        (
            {
                "proc__self__cgroup": "1:cpu:/c\n",
                "sys__fs__cgroup__cpu__c__cpu.cfs_quota_us": "300000\n",
                "sys__fs__cgroup__cpu__c__cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc__self__cgroup": "1:cpu:/c\n",
                "sys__fs__cgroup__cpu__c__cpu.cfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu__c__cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_cpus_are_what_affinity_and_cgroups_leave(tmp_path, monkeypatch, files, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert host.cpu_count(tree(tmp_path, **files)) == count


def test_this_machine():
    device = cpu_device()
    assert device.memory_bytes > 2**28
    assert device.units >= 1
    assert device.libraries["torch"]
    assert device.libraries.keys() <= set(LIBRARIES)
