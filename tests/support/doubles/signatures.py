"""Signatures of other people's functions, as recorded from their releases, and functions that have them.

``tests/support/signatures/*.json`` holds facts: per release, function name → its parameters as one line of Python.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent.parent / "signatures"


@functools.cache
def recorded(release: str) -> dict[str, inspect.Signature]:
    """Function name → signature, of a release such as ``"flash-attn-2.8.3.post2"``."""
    texts = json.loads((RECORDED / f"{release}.json").read_text("utf-8"))
    return {name: parse(text) for name, text in texts.items()}


def parse(text: str) -> inspect.Signature:
    """The signature that ``(a, b=1, *, c=None)`` is; a default that is no literal stays its own text."""
    function = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    kinds = inspect.Parameter
    found: list[inspect.Parameter] = []
    positional = [(a, kinds.POSITIONAL_ONLY) for a in args.posonlyargs]
    positional += [(a, kinds.POSITIONAL_OR_KEYWORD) for a in args.args]
    missing = [None] * (len(positional) - len(args.defaults))
    for (arg, kind), default in zip(positional, [*missing, *args.defaults], strict=True):
        found.append(kinds(arg.arg, kind, default=_default(default)))
    if args.vararg:
        found.append(kinds(args.vararg.arg, kinds.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(kinds(arg.arg, kinds.KEYWORD_ONLY, default=_default(default)))
    if args.kwarg:
        found.append(kinds(args.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def _default(node: ast.expr | None) -> Any:
    if node is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def standing_in(name: str, releases: Sequence[str], does: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the signature that `name` has in the first of `releases`, and must fit that of every other.

    `does` is called with the bound arguments, defaults applied: keyword-only, those that it names. An argument that a
    caller gave and that `does` does not name is an error: the double would ignore what the library does not.
    """
    signatures = {release: recorded(release)[name] for release in releases}
    own = next(iter(signatures.values()))
    understood = set(inspect.signature(does).parameters)

    @functools.wraps(does, assigned=())
    def double(*args: Any, **kwargs: Any) -> Any:
        for release, signature in signatures.items():
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name} of {release}: {error}") from None
        bound = own.bind(*args, **kwargs)
        if strange := set(bound.arguments) - understood:
            raise NotImplementedError(f"the double of {name} does not know what {sorted(strange)} do")
        bound.apply_defaults()
        return does(**{key: value for key, value in bound.arguments.items() if key in understood})

    double.__name__ = name.rpartition(".")[2]
    double.__signature__ = own  # type: ignore[attr-defined]
    del double.__wrapped__
    return double
