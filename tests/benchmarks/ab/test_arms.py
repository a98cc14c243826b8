"""How arms are written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headstock.benchmarks.ab.arms import read_arm, read_arms
from headstock.core.errors import InvalidInput


def test_a_name_alone_runs_here_without_options():
    arm = read_arm("sdpa")
    assert (arm.label, arm.backend, arm.options, arm.here, arm.config) == ("sdpa", "sdpa", {}, True, None)


def test_options_are_json_and_belong_to_the_backend():
    arm = read_arm('triton{"num_warps": 8, "note": "a } and @"}')
    assert (arm.backend, arm.options) == ("triton", {"num_warps": 8, "note": "a } and @"})
    assert arm.config == '{"triton": {"num_warps": 8, "note": "a } and @"}}'
    assert arm.here


def test_functions_in_the_place_of_ops_are_an_option():
    arm = read_arm("rocm_aiter_unified+unified_attention=my_kernels.fast:attend")
    assert (arm.backend, arm.options) == (
        "rocm_aiter_unified",
        {"aiter_ops": {"unified_attention": "my_kernels.fast:attend"}},
    )
    arm = read_arm('x{"a": 1, "aiter_ops": {"p": "m:f"}}+q=m:g+r=n:h')
    assert arm.options == {"a": 1, "aiter_ops": {"p": "m:f", "q": "m:g", "r": "n:h"}}


@pytest.mark.parametrize("place", ["", "bin/python"])
def test_an_environment_is_its_folder_or_its_python(tmp_path: Path, place: str):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    arm = read_arm(f"sdpa{{}}@{tmp_path / place}")
    assert (arm.backend, arm.python, arm.here) == ("sdpa", str(python), False)  # the link: it says which environment


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sdpa"], "name two or more"),
        ([], "name two or more"),
        (["sdpa", "sdpa"], "'sdpa' is named twice"),
        (["sdpa", ""], "does not start with the name of a backend"),
        (["sdpa", "{}"], "does not start with the name of a backend"),
        (["sdpa", "@/venv"], "does not start with the name of a backend"),
        (["sdpa", 'cpu{"a": }'], "the options are not JSON: Expecting value"),
        (["sdpa", "cpu{"], "the options are not JSON"),
        (["sdpa", "cpu{}x"], "'x' is neither options in braces, +op=package:function nor @ENVIRONMENT"),
        (["sdpa", "cpu+op"], "'+op' is neither options"),
        (["sdpa", "cpu+op=no_function"], "'+op=no_function' is neither options"),
        (["sdpa", "cpu+op=m:f+op=m:g"], "puts two functions in the place of op"),
        (["sdpa", "cpu@"], "nothing is neither a virtual environment nor a Python"),
        (["sdpa", "cpu@/no/such/venv"], "/no/such/venv is neither a virtual environment nor a Python"),
        (["sdpa", "cpu@/etc/passwd"], "/etc/passwd is neither a virtual environment nor a Python"),
    ],
)
def test_what_is_wrong_is_named(words, problem):
    with pytest.raises(InvalidInput, match="arms: ") as refused:
        read_arms(words)
    assert problem in str(refused.value)
