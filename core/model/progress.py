"""Progress of long work on models: who reports, and the bar that shows it on stderr."""

from __future__ import annotations

import sys
from typing import Protocol


class Progress(Protocol):
    """Told how far a task has come."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `task` are finished; `done == total` ends it, a `total` of 0 is unknown."""
        ...


def silent(task: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


class ProgressBar:
    """A `Progress` that draws one bar a task on stderr, and nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._bar = None
        self._task = ""

    def __call__(self, task: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None or task != self._task:
            self.close()
            self._bar, self._task = self._open(task, total), task
        self._bar.update(done - self._bar.n)
        if done >= total > 0:
            self.close()

    def close(self) -> None:
        """End the bar that is shown, if one is."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    @staticmethod
    def _open(task: str, total: int):
        from tqdm import tqdm

        return tqdm(desc=task, total=total or None, unit="B", unit_scale=True, file=sys.stderr)
