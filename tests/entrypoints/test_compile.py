"""`headstock compile`: kernels ahead of their first use, or a reason."""

from __future__ import annotations

import pytest

from support.cli import run_cli

FAKE = """#!/bin/sh
case "$*" in *--version*) echo fake 1.0; exit 0 ;; esac
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""


@pytest.fixture
def compiler(tmp_path):
    path = tmp_path / "c++"
    path.write_text(FAKE)
    path.chmod(0o755)
    return str(path)


def test_the_librarys_path_is_printed_and_how_to_use_it(compiler, tmp_path):
    result = run_cli("compile", "--output", str(tmp_path / "out"), environ={"CXX": compiler})
    assert result.code == 0
    (library,) = (tmp_path / "out").glob("*/*.so")
    assert result.out == f"{library}\n"
    assert f"HEADSTOCK_KERNELS={tmp_path / 'out'}" in result.err


def test_without_a_compiler_it_is_refused(tmp_path):
    result = run_cli("compile", "--output", str(tmp_path), environ={"CXX": "/nowhere/c++"})
    assert (result.code, result.out) == (2, "")
    assert "no C++ compiler was found" in result.err


def test_a_backend_that_compiles_nothing_says_so(tmp_path):
    result = run_cli("compile", "sdpa", "--output", str(tmp_path))
    assert result.code == 2
    assert "sdpa compiles nothing" in result.err
