"""A bar for what takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")


class Bar:
    """A progress bar that says what is being done."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def during(self, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, one step."""
        self.say(what)
        result = call()
        self.advance()
        return result

    def each(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """`items`, a step each."""
        self.say(what)
        for item in items:
            yield item
            self.advance()


@contextmanager
def progress(what: str, steps: int) -> Iterator[Bar]:
    """A bar of so many steps on stderr, where that is a terminal; it begins with `what`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    # Plain text: what is done is named by users, whose brackets are no markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown, shown.add_task(what, total=steps))
