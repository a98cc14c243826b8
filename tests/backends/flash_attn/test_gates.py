"""Where the three run, what they refuse there, and what they say."""

from __future__ import annotations

import pytest

from headstock.backends.flash_attn import FlashAttention2, FlashAttention3, FlashAttention4
from headstock.core.attention import AttentionSpec, Capabilities, mismatches
from headstock.selector.profiles import profile
from support.doubles.devices import pretend
from support.doubles.install import distribution


def spec(**fields):
    return AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})


def against(cls, card, **fields):
    """Fields that speak against a layer."""
    device, asked = profile(card), spec(**fields)
    return sorted({m.field for m in (*mismatches(asked, cls.capabilities(device)), *cls.refusals(asked, device))})


@pytest.mark.parametrize(
    ("cls", "cards"),
    [
        (FlashAttention2, {"a100", "h100", "b200", "rtx4090", "mi300x"}),
        (FlashAttention3, {"h100"}),
        (FlashAttention4, {"h100", "b200"}),
    ],
)
def test_each_runs_on_its_cards_only(cls, cards):
    everything = ("a100", "h100", "b200", "rtx4090", "mi300x", "cpu-avx2")
    assert {card for card in everything if cls.capabilities(profile(card)) != Capabilities()} == cards


@pytest.mark.parametrize("capability", [(7, 0), (7, 5)])
def test_cards_before_ampere_are_refused(capability):
    assert FlashAttention2.capabilities(pretend("a100", capability=capability)) == Capabilities()


@pytest.mark.parametrize(
    ("cls", "package", "right", "wrong"),
    [
        (FlashAttention2, "flash-attn", "2.8.3.post2", ("2.7.4", "3.0.0")),
        (FlashAttention3, "flash-attn-3", "3.0.0b1", ("2.8.3", "4.0")),
        (FlashAttention4, "flash-attn-4", "4.0.0b36", ("4.0.0b20", "5.0")),
    ],
)
def test_other_versions_are_refused_with_the_range(cls, package, right, wrong, tmp_path, monkeypatch):
    assert cls.availability().reasons == (f"package {package} is not installed",)
    (requirement,) = cls.requires
    for version in wrong:
        with monkeypatch.context() as patch:
            distribution(patch, tmp_path / version, package, version)
            text = f"package {package} is {version}, needed is {requirement.versions}"
            assert cls.availability().reasons == (text,)
        assert cls.capabilities(pretend("h100", libraries={package: version})) == Capabilities()
    distribution(monkeypatch, tmp_path / right, package, right)
    assert cls.availability().available
    assert cls.capabilities(pretend("h100", libraries={package: right})) != Capabilities()


@pytest.mark.parametrize("block_size", [16, 128, 257, 384])
def test_flash_attn_wants_pages_in_multiples_of_256(block_size):
    assert against(FlashAttention2, "h100", block_size=block_size) == ["block_size"]
    assert against(FlashAttention2, "h100", block_size=512) == []


@pytest.mark.parametrize("cls", [FlashAttention3, FlashAttention4])
@pytest.mark.parametrize("block_size", [1, 16, 17, 256])
def test_the_later_ones_take_any_page(cls, block_size):
    assert against(cls, "h100", block_size=block_size) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sinks": True}, "sinks"),
        ({"dtype": "float32"}, "dtype"),
        ({"kv_format": "fp8_e4m3"}, "kv_format"),
        ({"kv_format": "fp16"}, "kv_format"),
        ({"head_size": 264}, "head_size"),
        ({"head_size": 100}, "head_size"),
        ({"alibi": True, "lse": True}, "lse"),
    ],
)
def test_what_flash_attn_refuses(fields, field):
    assert field in against(FlashAttention2, "h100", block_size=256, **fields)


@pytest.mark.parametrize("fields", [{}, {"window": (3, 0)}, {"softcap": 20.0}])
def test_the_build_for_amd_is_refused_for_pages_window_and_softcap(fields):
    """Its kernels ignore the three without a word."""
    assert against(FlashAttention2, "mi300x", kv_source="ragged", **fields) == sorted(fields)
    assert "kv_source" in against(FlashAttention2, "mi300x", block_size=256, **fields)


def test_the_build_for_amd_is_refused_for_the_sums_of_causal_rows():
    """A query without a key has 0 there, which another's may be as well."""
    assert against(FlashAttention2, "mi300x", kv_source="ragged", lse=True) == ["lse"]
    assert against(FlashAttention2, "mi300x", kv_source="ragged", lse=True, causal=False) == []


def test_sinks_are_left_to_the_fourth():
    assert against(FlashAttention3, "h100", sinks=True) == ["sinks"]
    assert against(FlashAttention4, "h100", sinks=True) == []


@pytest.mark.parametrize(
    ("sizes", "fits"), [((128, 128), True), ((192, 128), True), ((256, 256), True), ((192, 192), False)]
)
def test_head_sizes_of_the_fourth_on_blackwell(sizes, fits):
    found = against(FlashAttention4, "b200", head_size=sizes[0], head_size_v=sizes[1])
    assert found == ([] if fits else ["head_size"])
    assert against(FlashAttention4, "h100", head_size=sizes[0], head_size_v=sizes[1]) == []
