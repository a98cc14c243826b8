"""What is said about the machine."""

from __future__ import annotations

from headstock.benchmarks.machine import describe, load_average, read_caches
from headstock.core.attention import Device
from headstock.core.version import __version__

CPU = Device(
    platform="cpu",
    name="A CPU",
    arch="x86_64",
    units=2,
    memory_bytes=24 * 2**30,
    features=frozenset({"avx2", "fma"}),
)


def sysfs(root):
    """Caches of a CPU with an L1 for instructions and an L3 for eight CPUs."""
    levels = [("1", "Data", "32K", "0"), ("1", "Instruction", "64K", "0"), ("3", "Unified", "32M", "0-3,8-11")]
    for index, (level, kind, size, shared) in enumerate(levels):
        folder = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(text + "\n")
    pages = root / "sys/kernel/mm/transparent_hugepage"
    pages.mkdir(parents=True)
    (pages / "enabled").write_text("always [madvise] never\n")
    return root


def test_caches_that_hold_data_are_read_with_who_shares_them(tmp_path):
    l1, l3 = read_caches(sysfs(tmp_path))
    assert (l1.level, l1.nbytes, l1.shared_by) == (1, 32 * 2**10, 1)
    assert (l3.level, l3.nbytes, l3.shared_by) == (3, 32 * 2**20, 8)


def test_the_machine_in_words(tmp_path):
    machine = describe(CPU, sysfs(tmp_path))
    assert machine.last_level_bytes == 32 * 2**20
    text = "\n".join(machine.lines())
    assert "A CPU (x86_64; avx2), 2 CPUs, 24 GiB, huge pages madvise" in text
    assert "L1 32 KiB for 1, L3 32 MiB for 8" in text
    assert f"headstock {__version__}, torch " in text


def test_a_system_that_tells_nothing_is_described_all_the_same(tmp_path):
    machine = describe(CPU, tmp_path)
    assert (machine.caches, machine.last_level_bytes, machine.huge_pages) == ((), None, "")
    assert "caches: unknown" in machine.lines()


def test_the_load_is_a_number_where_the_system_has_one():
    load = load_average()
    assert load is None or load >= 0
