"""The process in which a backend is checked: it may crash or hang, and only its case is lost.

Speaks to its parent in lines of JSON on the stdout it was started with; whatever kernels print goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from ..core.errors import HeadstockError

Message = dict[str, Any]
"""Has a key ``event``: prepared, started, ended, finished or refused."""


def main() -> None:
    """Do what the request on stdin says: the fields of `Order`, ids of cases that are done already, and conventions
    of which no more are to be tried.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends us
    request = json.load(sys.stdin)
    with _own_stdout() as stream:
        try:
            for message in work(request["order"], request["done"], request["given_up"]):
                print(json.dumps(message), file=stream, flush=True)
        except HeadstockError as error:
            print(json.dumps({"event": "refused", "reason": str(error)}), file=stream, flush=True)


def work(order: dict[str, Any], done: Sequence[str] = (), given_up: Sequence[str] = ()) -> Iterator[Message]:
    """Run the cases that are not `done`, nor of conventions that are `given_up`, and tell of each before and after."""
    from ..plugins.conformance import check
    from .checking import Order, prepare

    prepared = prepare(Order(**order))
    subject = prepared.subject
    behind = frozenset(done)
    cases = [case for case in prepared.cases if case.id not in behind and case.convention not in given_up]
    about = {"backend": subject.name, "package": prepared.package, "source_hash": prepared.source_hash}
    yield {"event": "prepared", **about, "device": prepared.device, "cases": len(cases)}
    if prepared.failure:
        yield {"event": "ended", "outcome": asdict(prepared.failure)}
    outcomes = check(subject, cases)
    for case in cases:
        yield {"event": "started", "case": case.id, "convention": case.convention, "problem": str(case.problem)}
        outcome = next(outcomes)
        yield {"event": "ended", "outcome": asdict(outcome)}
        if outcome.status == "failed" and subject.lost:
            return  # without saying that this is all: the parent goes on in a new process
    yield {"event": "finished"}


def _own_stdout() -> TextIO:
    """The stdout of this process as a stream; file descriptor 1 becomes stderr."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream
