"""Whether each check of a double has been violated: one that never refuses proves nothing of calls that pass it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType


def unviolated(modules: Iterable[ModuleType], calls: Iterable[Callable[[], object]]) -> list[str]:
    """The checks in these modules, as source, at which none of `calls` ended. Every call has to raise.

    A check is a ``require…(…)`` or a ``raise``.
    """
    checks = {(str(file), node.lineno): node for file in map(_file, modules) for node in _checks(file)}
    seen = {_ended(call, {file for file, _ in checks}) for call in calls}
    return [
        f"{Path(file).name}:{line}: {ast.unparse(node)}"
        for (file, line), node in sorted(checks.items())
        if not any(f == file and node.lineno <= at <= (node.end_lineno or 0) for f, at in seen)
    ]


def _file(module: ModuleType) -> Path:
    return Path(inspect.getfile(module))


def _checks(file: Path) -> list[ast.stmt]:
    return [
        node
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and _name(node.value).startswith("require"))
    ]


def _name(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return function.id.lstrip("_") if isinstance(function, ast.Name) else ""


def _ended(call: Callable[[], object], files: set[str]) -> tuple[str, int]:
    """Where, in these files, a call was refused."""
    try:
        call()
    except Exception as error:
        trace, found = error.__traceback__, ("", 0)
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in files:
                found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
            trace = trace.tb_next
        return found
    raise AssertionError("a call that was to be refused was answered")
