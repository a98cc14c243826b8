"""Reports as values, as JSON and as JUnit XML."""

from __future__ import annotations

import json
import shlex
from xml.etree import ElementTree

import pytest

from headstock.plugins.conformance import CONVENTIONS, Outcome, Report

PASSED = Outcome(case="keys:decode", convention="keys", status="passed", seconds=0.5)
SKIPPED = Outcome(case="sinks:zero", convention="sinks", status="skipped", reason="sinks: asked yes, offered nothing")
FAILED = Outcome(
    case="window:of-4", convention="window", status="failed", reason="out is 3,\x1b not <4>", problem="rows=1x9"
)
MADE_UP = Outcome(case="mixed:rows=1x90", convention="mixed", status="failed", reason="off", problem="rows=1x2")


def report(*outcomes: Outcome, unrun: int = 0) -> Report:
    return Report(
        backend="fast",
        package="my-attention 1.0",
        source_hash="abc",
        device="a CPU",
        when="2026-01-01T00:00:00+00:00",
        command="headstock check fast --device cpu",
        level="quick",
        seed=3,
        outcomes=outcomes,
        unrun=unrun,
    )


@pytest.mark.parametrize(
    ("outcomes", "unrun", "conforms"),
    [
        ([PASSED], 0, True),
        ([PASSED, SKIPPED], 0, True),
        ([PASSED, FAILED], 0, False),
        ([SKIPPED], 0, False),
        ([], 0, False),
        ([PASSED], 5, False),
    ],
)
def test_a_backend_conforms_when_something_passed_and_nothing_failed(outcomes, unrun, conforms):
    assert report(*outcomes, unrun=unrun).conforms is conforms


def test_counts_are_by_convention_in_their_order():
    counts = report(FAILED, PASSED, SKIPPED, PASSED).counts()
    assert list(counts) == ["keys", "window", "sinks"]
    assert [c.verdict for c in counts.values()] == ["passed", "failed", "skipped"]
    assert counts["keys"].passed == 2


def test_a_failure_is_repeated_by_its_id_and_a_made_up_one_by_the_smallest_problem():
    assert report().repeat(FAILED) == "headstock check fast --device cpu --case window:of-4"
    assert shlex.split(report().repeat(MADE_UP))[-1] == "mixed:rows=1x2"


def test_the_json_document_has_everything():
    document = json.loads(json.dumps(report(PASSED, SKIPPED, FAILED, MADE_UP).to_dict()))
    assert (document["backend"], document["seed"], document["conforms"]) == ("fast", 3, False)
    assert [c["name"] for c in document["conventions"]] == ["keys", "window", "sinks", "mixed"]
    assert document["conventions"][0]["statement"] == CONVENTIONS["keys"]
    assert [c["status"] for c in document["cases"]] == ["passed", "skipped", "failed", "failed"]
    assert [f["command"].split()[-1] for f in document["failures"]] == ["window:of-4", "mixed:rows=1x2"]
    assert "roundoff" in document["tolerance"]


def test_junit_has_a_suite_a_convention():
    root = ElementTree.fromstring(report(PASSED, SKIPPED, FAILED).to_junit().encode())
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["keys", "window", "sinks"]
    assert [suites["window"].get(name) for name in ("tests", "failures", "skipped")] == ["1", "1", "0"]
    (failure,) = suites["window"].iter("failure")
    assert failure.get("message") == "out is 3,? not <4>"
    assert "repeat with: headstock check fast" in failure.text
    (skipped,) = suites["sinks"].iter("skipped")
    assert skipped.get("message") == SKIPPED.reason
