"""Who imports whom, read from the source: statements inside functions and under TYPE_CHECKING count as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .tree import ROOT, dotted, modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One name that a module imports."""

    path: str
    """File of the importing module, relative to the root."""
    line: int
    target: str
    """Absolute dotted name: ``torch.nn``, ``headstock.core.kv``; of ``from a import b`` it is ``a.b``."""
    relative: bool
    """Whether it was written with leading dots."""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def imports_of(path: str, source: str) -> Iterator[Import]:
    """The imports in `source`, which stands (or would stand) at `path`. ``import_module("literal")`` counts as one."""
    package = dotted(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(ast.parse(source, path)):
        for target, relative in _targets(node, package):
            yield Import(path=path, line=getattr(node, "lineno", 0), target=target, relative=relative)


def all_imports() -> list[Import]:
    """The imports of every module of the package."""
    return [found for path in modules() for found in imports_of(path, (ROOT / path).read_text("utf-8"))]


def _targets(node: ast.AST, package: list[str]) -> Iterator[tuple[str, bool]]:
    match node:
        case ast.Import(names=names):
            yield from ((alias.name, False) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = [*package[: len(package) - level + 1]] if level else []
            base += module.split(".") if module else []
            yield from ((".".join([*base, alias.name]), level > 0) for alias in names)
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            level = len(name) - len(name.lstrip("."))
            base = package[: len(package) - level + 1] if level else []
            yield ".".join([*base, name.lstrip(".")]), level > 0
