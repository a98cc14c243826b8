"""What is loaded, and when: asked of a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headstock


def loaded_by(statement: str) -> set[str]:
    """The modules that `statement` loads in an interpreter of its own."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def third_party(names: set[str]) -> set[str]:
    tops = {name.split(".")[0] for name in names}
    return {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_")}


def test_the_root_loads_nothing():
    loaded = loaded_by("import headstock")
    assert third_party(loaded) == {"headstock"}
    assert {name for name in loaded if name.startswith("headstock.")} == set()


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("core.version", set()),
        ("core.params", set()),
        ("core.outputs", set()),
        ("core.scheduler", {"numpy"}),
        ("core.kv", {"numpy"}),
    ],
)
def test_deciding_needs_no_torch(module, allowed):
    assert third_party(loaded_by(f"import headstock.{module}")) <= {"headstock"} | allowed


@pytest.mark.parametrize("name", headstock.__all__)
def test_every_public_name_of_the_root_arrives(name):
    assert getattr(headstock, name) is not None
    assert name in dir(headstock)


def test_a_name_that_the_root_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LLLM'"):
        _ = headstock.LLLM
