"""The conformance kit in pytest: ``pytest --pyargs headstock.plugins.conformance --headstock-backend NAME``.

pytest loads this module wherever Headstock is installed, in everybody's runs: it imports nothing but pytest, and acts
only on the kit's own folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from ..plugins.conformance import Case, Outcome, Subject

KIT = Path(__file__).resolve().parents[1] / "plugins" / "conformance"
ABOVE = (KIT.parent, KIT.parents[1])
"""The package's folders that lead to the kit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headstock", "Headstock: checks of attention backends")
    group.addoption("--headstock-backend", metavar="NAME", help="backend to check")
    group.addoption("--headstock-device", metavar="NAME", help="device to check it on; else the best here")
    group.addoption("--headstock-level", choices=("quick", "full"), default="quick", help="how much is checked")
    group.addoption("--headstock-seed", type=int, default=0, metavar="N", help="seed of the made-up cases")
    group.addoption("--headstock-config", metavar="JSON|FILE", help="options of backends, an object by name")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The kit's folder, when it was asked for, is collected as cases of the backend that was named.

    The hook came with pytest 8; an older one finds nothing in the folder.
    """
    if path != KIT and path not in ABOVE:
        return None
    named = parent.config.getoption("--headstock-backend")
    if path == KIT and (named or parent.session.isinitpath(path)):
        return Kit.from_parent(parent, path=path)
    return pytest.Dir.from_parent(parent, path=path) if named else None


class Kit(pytest.Directory):
    """All cases of one backend."""

    def collect(self) -> Iterator[pytest.Item]:
        from ..core.errors import HeadstockError
        from .checking import Order, prepare

        option = cast("Callable[[str], Any]", self.config.getoption)
        backend = option("--headstock-backend")
        if not backend:
            raise self.CollectError("name the backend to check: --headstock-backend NAME (see: headstock backends)")
        order = Order(
            backend=backend,
            device=option("--headstock-device"),
            config=option("--headstock-config"),
            level=option("--headstock-level"),
            seed=option("--headstock-seed"),
        )
        try:
            prepared = prepare(order)
        except HeadstockError as error:
            raise self.CollectError(str(error)) from error
        if prepared.failure:
            raise self.CollectError(prepared.failure.reason)
        for case in prepared.cases:
            yield CaseItem.from_parent(self, name=case.id, subject=prepared.subject, case=case)


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, subject: Subject, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self._subject = subject
        self._case = case

    def runtest(self) -> None:
        from ..plugins.conformance import run

        outcome = run(self._case, self._subject)
        if outcome.status == "skipped":
            pytest.skip(outcome.reason)
        if outcome.status == "failed":
            raise CaseFailed(outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CaseFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return KIT, None, self.name


class CaseFailed(Exception):
    """A case of the kit failed; the text is the whole report of it."""

    def __init__(self, outcome: Outcome) -> None:
        from ..plugins.conformance import CONVENTIONS

        lines = [f"{outcome.convention}: {CONVENTIONS[outcome.convention]}", outcome.reason]
        super().__init__("\n".join([*lines, f"problem: {outcome.problem}"]))
