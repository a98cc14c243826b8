"""Problems as text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.attention import KV_FORMATS, AttentionSpec
from headstock.core.attention.spec import KINDS, KV_SOURCES
from headstock.core.errors import InvalidInput
from headstock.plugins.conformance import Problem, parse_problem

FORMATS = [
    (name, scales)
    for name, f in KV_FORMATS.items()
    for scales in (("none", "tensor", "head") if f.scaled else ("none",))
]


@st.composite
def specs(draw: st.DrawFn) -> AttentionSpec:
    kv_heads = draw(st.integers(1, 5))
    kv_format, scales = draw(st.sampled_from([("auto", "none"), *FORMATS]))
    values: dict[str, Any] = {
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * draw(st.integers(1, 5)),
        "head_size": draw(st.integers(1, 300)),
        "head_size_v": draw(st.integers(0, 300)),
        "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "kv_format": kv_format,
        "kv_scales": scales,
        "block_size": draw(st.integers(1, 256)),
        "kind": draw(st.sampled_from(KINDS)),
        "kv_source": draw(st.sampled_from(KV_SOURCES)),
        "window": draw(st.none() | st.tuples(st.integers(-1, 99), st.integers(-1, 99))),
        "scale": draw(st.floats(0.001, 10) | st.just(0.0)),
        "softcap": draw(st.none() | st.floats(0.001, 100)),
    }
    flags = {name: draw(st.booleans()) for name in ("causal", "alibi", "sinks", "lse", "batch_invariant")}
    return AttentionSpec(**values, **flags)


problems = st.builds(
    Problem,
    spec=specs(),
    rows=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9999)), min_size=1, max_size=5).map(tuple),
    fill=st.sampled_from(["normal", "probe"]),
    layout=st.sampled_from(["nhd", "hnd"]),
    seed=st.integers(0, 10**6),
    placement=st.integers(-2, 5),
    poison=st.sampled_from(["any", "-inf"]),
    padded_rows=st.integers(0, 3),
    padded_queries=st.integers(0, 1),
    strided=st.booleans(),
    shared=st.booleans(),
    loose=st.booleans(),
    sink=st.none() | st.floats(-5, 5),
    k_scale=st.floats(0.001, 2),
    v_scale=st.floats(0.001, 2),
)


@given(problems)
def test_a_problem_survives_as_text(problem):
    assert parse_problem(str(problem)) == problem


def test_the_text_says_only_what_differs_from_the_plainest_problem():
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=16, dtype="float32")
    assert str(Problem(spec=spec, rows=((1, 9), (3, 5)))) == "rows=1x9+3x5"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rows=1x9,speed=3", "'speed=3' is no part of a problem; known are rows, fill"),
        ("rows", "'rows' is no part of a problem"),
        ("rows=1", "'rows=1' cannot be read"),
        ("rows=-1x3", "a row is QUERIESxKEYS"),
        ("strided=true", "it is yes or no"),
        ("hq=3,hkv=2", "3 query heads are no multiple of 2"),
        ("fill=noise", "'noise' is not one of"),
        ("poison=arsenic", "'arsenic' is not one of"),
    ],
)
def test_what_cannot_be_read_is_refused(text, problem):
    with pytest.raises(InvalidInput, match=problem):
        parse_problem(text)
