"""The conformance kit over the triton backend, in Triton's interpreter: a part in every run, all when heavy.

What runs always is chosen so that every kernel and every branch of theirs is run.
"""

from __future__ import annotations

import pytest

from headstock.backends.triton import TritonBackend, environment
from headstock.backends.triton.tuning import TritonOptions
from headstock.plugins.conformance import Subject, check, select
from support.attention import CPU
from support.conforming import failed, outcomes
from support.doubles.devices import pretend
from support.interpreted import interpreted

pytestmark = interpreted
ALWAYS = (
    "dtypes:bfloat16-mixed",
    "dtypes:float16-mixed",
    "dtypes:bfloat16-ragged",
    "kv-formats:fp8_e4m3-head-mixed",
    "kv-formats:fp8_e4m3fnuz-tensor-written-exactly",
    "kv-formats:int8_per_head-head-mixed",
    "kv-formats:int8_per_tensor-tensor-saturates",
    "sizes:v-5-of-16-cache",
    "sizes:block-17",
    "sizes:group-7",
    "softcap:with-a-window",
    "sinks:softcap",
    "alibi:after-the-softcap",
    "lse:merges-normal",
    "nan:*-decode",
    "padding:mixed-1",
    "plans:2-in-flight-backwards",
    "plans:scribbled-workspace",
    "graph:*",
    "writing:every-other-slot",
    "writing:strided-*",
    "offsets:read-hnd-*",
)


@pytest.mark.parametrize("pattern", ALWAYS)
def test_a_part_of_the_kit(pattern: str) -> None:
    subject = Subject(name="triton", cls=TritonBackend, device=CPU)
    found = list(check(subject, select(subject, pattern)))
    assert failed(found) == []
    assert any(outcome.status == "passed" for outcome in found)


@pytest.mark.parametrize("pattern", ["declared:layout-x_packed", "writing:*-x_packed", "chunks:halves-x_packed"])
def test_packed_planes_are_read_and_written_on_rocm(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "offered_instead", lambda device: "")
    subject = Subject(name="triton", cls=TritonBackend, device=pretend("mi300x"))
    found = list(check(subject, select(subject, pattern)))
    assert failed(found) == []
    assert any(outcome.status == "passed" for outcome in found)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_whole_kit() -> None:
    found = outcomes(TritonBackend, CPU)
    assert failed(found) == []
    assert {o.convention for o in found if o.status == "skipped"} <= {"offsets", "declared"}


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_kit_with_small_tiles_and_many_splits() -> None:
    options = TritonOptions(prefill_rows=16, prefill_keys=16, decode_keys=16, splits=3)
    found = outcomes(TritonBackend, CPU, made_up=150, options=options, seed=1)
    assert failed(found) == []
