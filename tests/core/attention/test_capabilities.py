"""What is asked is held against what is offered, field by field; undeclared is unsupported."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from headstock.core.attention import (
    ANY,
    AttentionSpec,
    Capabilities,
    GraphSupport,
    Mismatch,
    Sizes,
    common,
    mismatches,
    model_window,
    one_of,
)
from headstock.core.attention.capabilities import RULES

READ_BY_THE_ENGINE = {
    "layouts",
    "graph",
    "decode_query_len",
    "zero_length_rows",
    "padded_seq_len",
    "exact_seq_lens",
    "needs_zeroed_cache",
    "max_cache_elements",
}
"""Capabilities that answer no field of a spec."""
HELD_BY_ANOTHER_FIELD = {"num_kv_heads"}
"""With `num_heads`, as the group size."""

PLAIN = Capabilities(
    dtypes=frozenset({"float32"}),
    kv_formats=frozenset({"fp32"}),
    head_sizes=one_of(64),
    group_sizes=ANY,
    block_sizes=ANY,
    kinds=frozenset({"decoder"}),
    kv_sources=frozenset({"cache"}),
    causal=frozenset({True}),
)
"""A backend that declares just enough for a plain layer."""


def spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return AttentionSpec(**{**base, **changes})


def test_every_field_of_a_spec_is_asked_and_every_capability_answers() -> None:
    asked = {rule.asks for rule in RULES} | HELD_BY_ANOTHER_FIELD
    assert asked == {f.name for f in fields(AttentionSpec)}
    answering = {rule.offers for rule in RULES} | READ_BY_THE_ENGINE
    assert answering == {f.name for f in fields(Capabilities)}


def test_a_plain_layer_fits_a_plain_backend() -> None:
    assert mismatches(spec(), PLAIN) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_format": "fp32", "dtype": "bfloat16"},
        {"kv_format": "fp8_e4m3"},
        {"kv_format": "fp8_e4m3", "kv_scales": "head"},
        {"head_size": 40},
        {"head_size_v": 32},
        {"kind": "encoder"},
        {"kv_source": "ragged"},
        {"causal": False},
        {"window": model_window(4)},
        {"scale": 0.5},
        {"softcap": 30.0},
        {"alibi": True},
        {"sinks": True},
        {"masks": frozenset({"tree"})},
        {"latent": (56, 8)},
        {"lse": True},
        {"batch_invariant": True},
    ],
    ids=lambda changes: next(reversed(changes)),
)
def test_what_is_not_declared_is_refused_by_name(changes: dict[str, Any]) -> None:
    found = {m.field for m in mismatches(spec(**changes), PLAIN)}
    assert next(reversed(changes)) in found


def test_a_backend_that_declares_nothing_is_refused_for_every_reason_at_once() -> None:
    found = mismatches(spec(window=model_window(4), softcap=1.0), Capabilities())
    assert [m.field for m in found] == [
        "dtype",
        "kv_format",
        "head_size",
        "num_heads",
        "block_size",
        "kind",
        "kv_source",
        "causal",
        "window",
        "softcap",
    ]


def test_group_and_block_sizes_are_held_against_their_sets() -> None:
    caps = replace(PLAIN, group_sizes=one_of(1, 4), block_sizes=Sizes(multiple_of=256))
    assert [m.field for m in mismatches(spec(), caps)] == ["num_heads", "block_size"]
    assert mismatches(spec(num_heads=8, block_size=512), caps) == ()


def test_a_window_to_the_left_is_not_one_to_both_sides() -> None:
    caps = replace(PLAIN, windows=frozenset({"left"}), causal=frozenset({True, False}))
    assert mismatches(spec(window=model_window(4)), caps) == ()
    assert [m.field for m in mismatches(spec(causal=False, window=(3, 3)), caps)] == ["window"]


def test_a_mismatch_reads_as_asked_and_offered() -> None:
    assert str(Mismatch(field="head_size", asked=40, offered=one_of(64, 128))) == "head_size: asked 40, offered 64, 128"
    assert str(Mismatch(field="sinks", asked=True, offered=False)) == "sinks: asked yes, offered nothing"


@pytest.mark.parametrize(
    ("sizes", "inside", "outside"),
    [
        (ANY, [1, 17, 4096], [0]),
        (Sizes(multiple_of=8, high=256), [8, 256], [4, 264, 257]),
        (one_of(16, 32), [16, 32], [48]),
        (Sizes(low=32) & Sizes(multiple_of=24), [48], [24, 32]),
        (one_of(16, 32, 64) & Sizes(low=32), [32, 64], [16]),
    ],
)
def test_sizes_are_sets(sizes: Sizes, inside: list[int], outside: list[int]) -> None:
    assert all(n in sizes for n in inside)
    assert not any(n in sizes for n in outside)


def test_two_backends_offer_together_what_both_offer_and_need_what_either_needs() -> None:
    a = replace(PLAIN, softcap=True, layouts=("hnd", "nhd"), graph=GraphSupport.ALWAYS, exact_seq_lens=True)
    b = replace(PLAIN, softcap=True, sinks=True, layouts=("nhd",), graph=GraphSupport.UNIFORM, head_sizes_v=ANY)
    both = common(a, b)
    assert both.softcap
    assert not both.sinks
    assert both.layouts == ("nhd",)
    assert both.graph is GraphSupport.UNIFORM
    assert both.exact_seq_lens
    assert both.head_sizes_v is None
