"""Spans: taken down while a recorder is installed, and nothing otherwise."""

from __future__ import annotations

import threading

import pytest

from headstock.core.trace import Recorder, chrome_trace, recorder, recording, span


def test_without_a_recorder_a_span_is_one_shared_empty_context():
    assert recorder() is None
    with span("a", n=1) as value:
        assert value is None
    assert span("a") is span("b")


def test_spans_lie_in_each_other_and_have_what_was_said_of_them():
    with recording(Recorder()) as taken:
        with span("outer"):
            with span("inner", layer=3):
                pass
            with span("inner", layer=4):
                pass
        with span("next"):
            pass
    assert [(s.name, s.depth, dict(s.about)) for s in taken.spans] == [
        ("inner", 1, {"layer": 3}), ("inner", 1, {"layer": 4}), ("outer", 0, {}), ("next", 0, {}),
    ]  # fmt: skip
    one, two, outer, following = taken.spans
    assert outer.start <= one.start <= one.start + one.duration <= two.start
    assert two.start + two.duration <= outer.start + outer.duration <= following.start


def test_one_that_raises_is_taken_down_and_the_next_is_not_in_it():
    with recording(Recorder()) as taken:
        with pytest.raises(ValueError, match="no"), span("broken"):
            raise ValueError("no")
        with span("after"):
            pass
    assert [(s.name, s.depth) for s in taken.spans] == [("broken", 0), ("after", 0)]


def test_the_recorder_of_before_comes_back():
    with recording(Recorder()) as first:
        with recording(Recorder()) as second, span("a"):
            pass
        assert recorder() is first
    assert recorder() is None
    assert (len(first.spans), len(second.spans)) == (0, 1)


def test_threads_do_not_lie_in_each_other():
    with recording(Recorder()) as taken, span("here"):

        def work():
            with span("there"):
                pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    there, here = taken.spans
    assert (there.depth, here.depth) == (0, 0)
    assert there.thread != here.thread


def test_the_device_is_waited_for_where_spans_begin_and_end():
    waits = []
    with recording(Recorder(lambda: waits.append(1))), span("outer"), span("inner"):
        pass
    assert len(waits) == 4


def test_totals_are_seconds_by_name():
    taken = Recorder()
    taken.end("a", {}, 0, taken.begin()[1] - 2 * 10**9)
    taken.end("a", {}, 0, taken.begin()[1] - 10**9)
    assert taken.totals() == {"a": pytest.approx(3, abs=0.5)}


def test_a_chrome_trace_has_complete_events_in_microseconds_and_a_process_a_recorder():
    with recording(Recorder()) as first, span("outer"), span("inner", stats=(1, 2)):
        pass
    with recording(Recorder()) as second, span("other"):
        pass
    trace = chrome_trace({"one": first, "two": second})
    assert trace["displayTimeUnit"] == "ms"
    names, events = [], []
    for event in trace["traceEvents"]:
        (names if event["ph"] == "M" else events).append(event)
    assert [event["args"]["name"] for event in names] == ["one", "two"]
    assert [(e["ph"], e["name"]) for e in events] == [("X", "outer"), ("X", "inner"), ("X", "other")]
    assert [e["pid"] for e in events] == [names[0]["pid"]] * 2 + [names[1]["pid"]]
    inner = first.spans[0]
    assert (events[1]["ts"], events[1]["dur"]) == (inner.start / 1e3, inner.duration / 1e3)
    assert events[1]["args"] == {"stats": (1, 2)}


def test_values_of_ours_become_objects():
    from headstock.core.attention import RowCounts

    with recording(Recorder()) as taken, span("model", rows=RowCounts(decodes=2, decode_tokens=2)):
        pass
    (event,) = [e for e in chrome_trace({"x": taken})["traceEvents"] if e["ph"] == "X"]
    assert event["args"]["rows"]["decodes"] == 2
