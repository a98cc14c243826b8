"""pyproject.toml and constraints.txt say what is true of the source."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.imports import all_imports
from support.tree import ROOT, dotted, modules

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]

NEEDED_UNIMPORTED: dict[str, str] = {}
"""Dependencies that no module imports, with the reason why they are needed all the same."""

MODULES = {"flash_attn_interface": "flash-attn-3", "flashinfer": "flashinfer-python"}
"""Modules of kernel libraries that need not be here, where the distribution is not called like its module."""
NOT_ON_PYPI = {
    "flash-attn-3": "it is built from the hopper folder of FlashAttention's sources",
    "triton": "a torch brings its own, under several names",
}
"""Distributions that no extra can name, with where they come from."""


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def imported() -> dict[str, str]:
    """Distributions the package imports, each with one place that does."""
    owners = packages_distributions()
    found: dict[str, str] = {}
    for one in all_imports():
        top = one.target.split(".")[0]
        if top != "headstock" and top not in sys.stdlib_module_names:
            found.setdefault(canonicalize_name(MODULES.get(top) or owners.get(top, [top])[0]), one.where)
    return found


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_packages_are_those_on_disk():
    on_disk = {dotted(path).removesuffix(".__main__") for path in modules() if path.endswith("__init__.py")}
    folders = {".".join(["headstock", *path.split("/")[:-1]]) for path in modules()}
    assert on_disk == folders, "every folder with code needs an __init__.py"
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == folders


def test_every_library_that_is_imported_is_declared():
    extras = PROJECT["optional-dependencies"]
    declared = names(PROJECT["dependencies"]).union(*(names(extra) for key, extra in extras.items() if key != "dev"))
    assert {name: where for name, where in imported().items() if name not in declared | set(NOT_ON_PYPI)} == {}


def test_every_dependency_is_imported():
    assert names(PROJECT["dependencies"]) - set(imported()) == set(NEEDED_UNIMPORTED)


def test_everything_a_development_install_brings_is_pinned_as_installed():
    """torch's own requirements are left to torch: a CUDA or ROCm build has others."""
    todo = [Requirement(text) for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]]
    seen: set[str] = set()
    wrong: dict[str, str] = {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        pin, here = pins().get(name), version(name)
        if pin is None or Version(here).public != pin:
            wrong[name] = f"installed {here}, pinned {pin}"
        if name != "torch":
            todo += [r for r in map(Requirement, requires(name) or []) if applies(r, requirement.extras)]
    assert wrong == {}


def applies(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""})


def test_pins_lie_within_the_bounds():
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        assert pins()[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_the_changelog_knows_the_version_or_what_comes_next():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings
    assert all(name == "Unreleased" or Version(name) for name in headings)
