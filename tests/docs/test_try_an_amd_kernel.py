"""The page on kernels for AMD's cards, followed to the letter over AITER's double."""

from __future__ import annotations

import sys

import pytest

from headstock.backends._aiter_ops import OPS
from headstock.backends.rocm import AiterUnified
from headstock.core.attention import AttentionSpec
from headstock.plugins import load_plugins
from headstock.selector import Selector, read_policy
from headstock.selector.profiles import profile
from support.conforming import failed, outcomes, passed
from support.doubles import aiter
from support.doubles.devices import pretend
from support.doubles.install import distribution, install
from support.pages import blocks, page
from support.plugins import forget_modules
from support.wheels import run

PAGE = page("try-an-amd-kernel.md")
SPEC = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=128, dtype="bfloat16")


@pytest.fixture
def options(tmp_path, monkeypatch):
    """What the selector hands to the backend where AITER and the page's package are installed."""
    distribution(monkeypatch, tmp_path / "library", "amd-aiter", "0.1.20.post1")
    install(monkeypatch, aiter.aiter())
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for block in blocks(PAGE):
        if block.label:
            (project / block.label).write_text(block.text)
    (project / "pyproject.toml").write_text(
        (project / "pyproject.toml").read_text() + '\n[tool.setuptools]\npy-modules = ["my_amd_kernel"]\n'
    )
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", site, project)
    monkeypatch.syspath_prepend(str(site))
    selector = Selector(load_plugins(), read_policy(attention_backend="rocm_aiter_unified"))
    yield selector.propose({"layer": SPEC}, profile("mi300x")).choices["layer"].options
    forget_modules(site)


def test_the_package_takes_the_place_of_the_op_and_the_kit_tells_what_it_lacks(options):
    assert options.aiter_ops == (("unified_attention", "my_amd_kernel:attend"),)
    found = outcomes(AiterUnified, pretend("mi300x"), only={"keys", "window", "sinks"}, options=options)
    assert "keys" in passed(found)
    assert {case.partition(":")[0] for case, *_ in failed(found)} == {"window", "sinks"}


def test_the_kernel_is_about_ten_lines():
    (kernel,) = (block.text for block in blocks(PAGE) if block.label == "my_amd_kernel.py")
    assert sum(bool(line.strip()) for line in kernel.splitlines()) <= 12


def test_the_table_knows_every_op():
    assert [name for name in OPS if f"| `{name}` |" not in PAGE] == []
