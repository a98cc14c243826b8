"""Where the time of a step goes: spans that a `Recorder` takes down while it is installed, written as a Chrome trace.

There is one recorder at most in a process, for all engines and threads in it. Without one a span is an empty context.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from time import perf_counter_ns
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One piece of work."""

    name: str
    """``"schedule"``, ``"inputs"``, ``"model"``, ``"attention"``…"""
    start: int
    """Nanoseconds of `time.perf_counter_ns`."""
    duration: int
    """Nanoseconds."""
    thread: int
    depth: int
    """Spans of its thread that it lies in."""
    about: Mapping[str, Any]
    """What more there is to say: counts of tokens, the layer, the backend."""


class Recorder:
    """Takes spans down, those of several threads side by side."""

    def __init__(self, synchronize: Callable[[], object] | None = None) -> None:
        """`synchronize` waits for an accelerator: called where spans begin and end, so that each has its own work."""
        self.spans: list[Span] = []
        """In the order in which they ended."""
        self._synchronize = synchronize
        self._local = threading.local()

    def span(self, name: str, about: Mapping[str, Any]) -> AbstractContextManager[None, None]:
        """Take down what the body takes, also where it raises."""
        return _Open(self, name, about)

    def begin(self) -> tuple[int, int]:
        """Depth and start of a span of this thread."""
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        return depth, self._now()

    def end(self, name: str, about: Mapping[str, Any], depth: int, start: int) -> None:
        """Take down a span that `begin` gave."""
        duration, thread = self._now() - start, threading.get_native_id()
        self._local.depth = depth
        self.spans.append(Span(name=name, start=start, duration=duration, thread=thread, depth=depth, about=about))

    def totals(self) -> dict[str, float]:
        """Seconds by name. Spans of one name that lie in each other would count twice; ours do not."""
        found: dict[str, float] = {}
        for span in self.spans:
            found[span.name] = found.get(span.name, 0.0) + span.duration / 1e9
        return found

    def _now(self) -> int:
        if self._synchronize is not None:
            self._synchronize()
        return perf_counter_ns()


class _Open(AbstractContextManager[None, None]):
    """A span on its way."""

    __slots__ = ("_about", "_begun", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str, about: Mapping[str, Any]) -> None:
        self._recorder, self._name, self._about = recorder, name, about

    def __enter__(self) -> None:
        self._begun = self._recorder.begin()

    def __exit__(self, *_: object) -> None:
        self._recorder.end(self._name, self._about, *self._begun)


_installed: Recorder | None = None
_NOTHING = nullcontext()


def recorder() -> Recorder | None:
    """The one that is installed."""
    return _installed


@contextmanager
def recording(wanted: Recorder) -> Generator[Recorder]:
    """Install `wanted` for the body, in place of one that may be there."""
    global _installed  # noqa: PLW0603 - one a process is what it is
    before, _installed = _installed, wanted
    try:
        yield wanted
    finally:
        _installed = before


def span(name: str, **about: Any) -> AbstractContextManager[None, None]:
    """A piece of work, taken down where a recorder is installed."""
    return _NOTHING if _installed is None else _installed.span(name, about)


def chrome_trace(recorders: Mapping[str, Recorder]) -> dict[str, Any]:
    """Their spans in the Trace Event Format, as Perfetto shows it; each is a process by its name."""
    events: list[dict[str, Any]] = []
    for number, (name, one) in enumerate(recorders.items(), os.getpid()):
        events.append({"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}})
        events += [
            {
                "ph": "X",
                "name": span.name,
                "cat": "headstock",
                "pid": number,
                "tid": span.thread,
                "ts": span.start / 1e3,
                "dur": span.duration / 1e3,
                "args": {key: _plain(value) for key, value in span.about.items()},
            }
            for span in sorted(one.spans, key=lambda span: (span.start, span.depth))
        ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _plain(value: Any) -> Any:
    """For JSON: values of ours become objects."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
