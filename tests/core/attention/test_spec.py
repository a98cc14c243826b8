"""A spec that makes no sense is refused when it is made, naming the field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headstock.core.attention import KV_FORMATS, AttentionSpec, model_window
from headstock.core.errors import InvalidInput


def spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return AttentionSpec(**{**base, **changes})


def test_what_is_left_out_has_the_usual_value() -> None:
    made = spec()
    assert made.head_size_v == 64
    assert made.scale == pytest.approx(0.125)
    assert made.kv_format == "fp32"
    assert made.group_size == 3
    assert made.bytes_per_token == 2 * (64 + 64) * 4


def test_a_latent_cache_holds_one_vector_a_token() -> None:
    latent = spec(num_heads=16, num_kv_heads=1, head_size=576, head_size_v=512, latent=(512, 64), kind="latent")
    assert latent.bytes_per_token == 576 * 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_heads", 0),
        ("head_size", -1),
        ("block_size", 0),
        ("dtype", "int8"),
        ("kv_format", "fp3"),
        ("kind", "encoder-only"),
        ("kv_source", "disk"),
        ("kv_scales", "tensor"),
        ("masks", frozenset({"holes"})),
        ("softcap", -1.0),
        ("softcap", math.nan),
        ("softcap", math.inf),
        ("window", (-2, 0)),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        spec(**{field: value})
    assert refused.value.field == field


def test_query_heads_that_kv_heads_do_not_divide_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidInput, match="6 query heads are no multiple of 4"):
        spec(num_kv_heads=4)


@pytest.mark.parametrize("off", [None, 0, 0.0])
def test_a_softcap_of_zero_is_none(off: float | None) -> None:
    assert spec(softcap=off).softcap is None


@pytest.mark.parametrize(
    ("size", "causal", "window"), [(None, True, None), (1, True, (0, 0)), (4, True, (3, 0)), (4, False, (3, 3))]
)
def test_a_models_window_counts_the_current_key(size: int | None, causal: bool, window: tuple[int, int] | None) -> None:
    assert model_window(size, causal=causal) == window


def test_a_window_of_no_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        model_window(0)


def test_formats_know_the_size_of_their_storage() -> None:
    import torch

    for form in KV_FORMATS.values():
        assert getattr(torch, form.storage).itemsize == form.element_bytes
