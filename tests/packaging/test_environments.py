"""Installing Headstock beside a torch that is already there leaves that torch, and its triton, alone.

pip resolves the real wheel against the real requirements of everything below it, with a newer torch and a newer triton
on offer, and reports what it would install. No index is asked: each candidate is a wheel of nothing but metadata.
"""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.tree import ROOT
from support.wheels import bare_environment, pretend_installed, run, stub_wheel

DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
TRITONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
"""Distributions that carry a module ``triton``."""
ON_OFFER = {"torch": "99.0", **dict.fromkeys(TRITONS, "99.0"), "nvidia-cublas-cu13": "99.0"}
LOWEST_TORCH = next(str(s.version) for r in map(Requirement, DEPENDENCIES) if r.name == "torch" for s in r.specifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A torch that somebody installed before."""

    torch: str
    triton: tuple[str, str] | None = None
    """Name and version of the distribution that brought its triton."""


FOUND = {
    "CUDA 13.0": Found(torch="2.13.0+cu130", triton=("triton", "3.7.0")),
    "CUDA 11.8, the oldest torch we take": Found(torch=f"{LOWEST_TORCH}.0+cu118", triton=("triton", "3.2.0")),
    "ROCm 7.0": Found(torch="2.13.0+rocm7.0", triton=("triton-rocm", "3.7.0")),
    "ROCm 6.1, the oldest torch we take": Found(
        torch=f"{LOWEST_TORCH}.0+rocm6.1", triton=("pytorch-triton-rocm", "3.2.0")
    ),
    "AMD's own build": Found(torch="2.9.1+rocm7.2.0.git7e1940d4", triton=("triton", "3.5.1+rocm7.2.0.gita272dfa8")),
    "a build from source": Found(torch="2.14.0a0+gitdeadbee"),
    "CPU": Found(torch="2.13.0+cpu"),
}


@pytest.fixture(scope="module")
def candidates(tmp_path_factory) -> Path:
    """A folder of stub wheels: all that Headstock requires, with the requirements of the versions installed here."""
    folder = tmp_path_factory.mktemp("candidates")
    todo, seen = [Requirement(text) for text in DEPENDENCIES], set(ON_OFFER)
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        stub_wheel(folder, name, version(name), requires(name) or ())
        todo += [Requirement(text) for text in requires(name) or ()]
    stub_wheel(folder, "torch", ON_OFFER["torch"], ['triton==99.0; sys_platform == "linux"', "nvidia-cublas-cu13"])
    for name in set(ON_OFFER) - {"torch"}:
        stub_wheel(folder, name, ON_OFFER[name])
    return folder


def would_install(python: Path, candidates: Path, wheel: Path, *options: str) -> set[str]:
    """Names that ``pip install WHEEL`` would install into the environment of `python`."""
    report = python.parent / "report.json"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--dry-run", "--report", report)
    run(*pip, "--find-links", candidates, *options, wheel)
    return {canonicalize_name(item["metadata"]["name"]) for item in json.loads(report.read_text())["install"]}


@pytest.fixture
def beside(tmp_path, candidates, distributions):
    """Asks what an install into an environment with the given torch would bring."""

    def ask(found: Found | None, *options: str) -> set[str]:
        python, site = bare_environment(tmp_path / "venv")
        if found is not None:
            needs = [f"{found.triton[0]}=={found.triton[1]}"] if found.triton else []
            pretend_installed(site, "torch", found.torch, needs)
            if found.triton:
                pretend_installed(site, *found.triton)
        return would_install(python, candidates, distributions.wheel, *options)

    return ask


@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_a_torch_that_is_there_stays(beside, found):
    brought = beside(found)
    assert "headstock" in brought
    assert "transformers" in brought or "tokenizers" in brought, "the rest is installed as usual"
    assert brought.isdisjoint(ON_OFFER)


def test_an_upgrade_of_headstock_leaves_it_too(beside):
    assert beside(FOUND["ROCm 7.0"], "--upgrade").isdisjoint(ON_OFFER)


def test_without_a_torch_one_is_brought_with_the_triton_it_asks_for(beside):
    """The same question with another answer: the tests above can fail."""
    assert {"headstock", "torch", "triton", "nvidia-cublas-cu13"} <= beside(None)
