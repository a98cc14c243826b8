"""`headstock compile`: kernels ahead of their first use, or a reason."""

from __future__ import annotations

import pytest

from support import automatic
from support.cli import run_cli

FAKE = """#!/bin/sh
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


def test_without_output_it_goes_into_the_cache(compiler, tmp_path):
    result = run_cli("compile", environ={"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert result.code == 0
    (library,) = (tmp_path / "cache").glob("headstock/kernels/*/*.so")
    assert result.out == f"{library}\n"
    assert "HEADSTOCK_KERNELS" not in result.err


class TestBrokenCompiler:
    """What happens to whoever has one."""

    @pytest.fixture
    def environ(self, tmp_path):
        path = tmp_path / "c++"
        path.write_text("#!/bin/sh\necho 'attend.cpp:7: error: no such instruction' >&2\nexit 1\n")
        path.chmod(0o755)
        return {"CXX": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    @pytest.mark.skipif(automatic.BACKEND != "cpu", reason="cpu is not the automatic choice here")
    def test_the_engine_answers_through_the_next_backend_and_says_why(self, tiny, environ):
        for stage in ("compiling", "remembered"):
            result = run_cli("generate", tiny, "the fox", "--max-tokens", "2", environ=environ)
            assert result.code == 0, result.err
            assert "attention backend: sdpa" in result.err
            assert "not cpu: " in result.err
            assert "attend.cpp:7: error: no such instruction" in result.err
            assert ("compiling the CPU attention kernels" in result.err) == (stage == "compiling")
        row = next(r for r in run_cli("backends", "--json", environ=environ).json["backends"] if r["name"] == "cpu")
        assert row["verdict"] == "unavailable"
        assert "no such instruction (headstock compile tries again)" in row["reasons"][0]

    def test_asked_for_by_name_it_is_an_error_with_the_compilers_words(self, tiny, environ):
        result = run_cli("generate", tiny, "the fox", "--attention-backend", "cpu", environ=environ)
        assert (result.code, result.out) == (2, "")
        assert "attend.cpp:7: error: no such instruction" in result.err
        assert "Traceback" not in result.err

    def test_compile_tries_again(self, environ):
        for _ in range(2):
            result = run_cli("compile", environ=environ)
            assert result.code == 2
            assert "compiling the CPU attention kernels" in result.err
            assert "no such instruction" in result.err
