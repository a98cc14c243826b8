"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from headstock.core.model.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    bar = ProgressBar()
    bar("converting", 1, 2)
    bar("converting", 2, 2)
    bar.close()
    assert stream.getvalue() == ""


def test_each_task_has_a_bar_that_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    bar = ProgressBar()
    for task in ("checking", "converting"):
        bar(task, 50, 100)
        bar(task, 100, 100)
    lines = stream.getvalue().replace("\r", "\n").splitlines()
    assert any(line.startswith("checking: 100%") for line in lines)
    assert any(line.startswith("converting: 100%") for line in lines)
    assert stream.getvalue().endswith("\n")


def test_waiting_has_no_end_and_is_closed_by_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    bar = ProgressBar()
    bar("waiting", 0, 0)
    bar("converting", 100, 100)
    bar.close()
    assert stream.getvalue().index("waiting: ") < stream.getvalue().index("converting: 100%")
