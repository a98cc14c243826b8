"""What an extra brings, asked for before it is missed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from ...core.errors import HeadstockError


def require_extra(what: str, extra: str, modules: Iterable[str]) -> None:
    """Raise `HeadstockError` where a module that `what` needs, and `extra` brings, is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise HeadstockError(
            f'{what} needs {", ".join(missing)}, which the extra "{extra}" brings.\n'
            f"  install it with: pip install 'headstock[{extra}]'"
        )
