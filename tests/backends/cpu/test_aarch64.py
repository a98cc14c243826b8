"""The kernels on AArch64: compiled for it, and run under an emulator, which stands for a machine that is not here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from headstock.backends.cpu.compiler import FLAGS, ISA_FLAGS, SOURCES

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
DRIVER = Path(__file__).parent / "data" / "driver.cpp"


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_decodes_prompts_and_chunks_agree_with_double_precision(tmp_path: Path) -> None:
    """Correct under qemu-user; how fast real machines are is not known from this."""
    if not shutil.which(COMPILER) or not shutil.which(EMULATOR):
        pytest.skip(f"NOT TESTED: {COMPILER} and {EMULATOR} are not here (Debian: g++-aarch64-linux-gnu, qemu-user)")
    program = tmp_path / "driver"
    sources = [DRIVER, *sorted(SOURCES.glob("*.cpp"))]
    command = [COMPILER, *FLAGS, *ISA_FLAGS["aarch64"], "-static", f"-I{SOURCES}", *sources, "-o", program]
    subprocess.run(command, check=True)
    done = subprocess.run([EMULATOR, program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * 9
    assert lines[-1] == "4 floats a vector"
