"""A module is one noun, a function one thought."""

from __future__ import annotations

import ast

from support.tree import ROOT, files, modules

MODULE_LINES = 420
FUNCTION_LINES = 60


def test_no_module_outgrows_its_noun():
    sizes = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in modules()}
    assert {path: lines for path, lines in sizes.items() if lines >= MODULE_LINES} == {}


def test_no_function_outgrows_its_thought():
    """Docstring and statements count; a signature does not, since that of a command is the list of its options."""
    long = {}
    for path in modules():
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"), path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_the_root_holds_no_python_but_the_package_door():
    """A conftest.py or noxfile.py in the root would ship inside the package."""
    assert [path for path in files() if path.endswith(".py") and "/" not in path] == ["__init__.py", "__main__.py"]


def test_test_folders_are_no_packages():
    """With ``--import-mode=importlib`` an __init__.py in tests would make the root package load once more.

    Those inside a distribution of their own, which tests install, are another matter.
    """
    projects = {path.removesuffix("pyproject.toml") for path in files() if path.endswith("/pyproject.toml")}
    inits = [path for path in files() if path.startswith("tests/") and path.endswith("/__init__.py")]
    assert [path for path in inits if not path.startswith(tuple(projects))] == []
