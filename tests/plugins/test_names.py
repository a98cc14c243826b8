"""Names of backends across engines."""

from __future__ import annotations

import pytest

from headstock.plugins import ALIASES, BackendRegistry, PluginRecord
from headstock.plugins.names import key, nearest


def registry(*names: str) -> BackendRegistry:
    return BackendRegistry(
        PluginRecord(group="headstock.backends", name=n, target="m:C", distribution="headstock", version="1")
        for n in names
    )


EVERY_ONE = registry(
    "sdpa", "cpu", "triton", "flash_attn", "flash_attn_3", "flash_attn_4", "flashinfer", "flex_attention", "rocm_attn",
    "rocm_aiter_fa", "rocm_aiter_unified",
)  # fmt: skip


@pytest.mark.parametrize("written", ["flash_attn", "FLASH_ATTN", "flash-attn", "Flash-Attn", " flash_attn "])
def test_case_and_hyphens_do_not_matter(written):
    assert EVERY_ONE.find(written).label == "flash_attn"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        # vLLM
        ("FLASH_ATTN", "flash_attn"),
        ("FLASHINFER", "flashinfer"),
        ("TRITON_ATTN", "triton"),
        ("ROCM_AITER_FA", "rocm_aiter_fa"),
        ("ROCM_AITER_UNIFIED_ATTN", "rocm_aiter_unified"),
        ("ROCM_ATTN", "rocm_attn"),
        ("FLEX_ATTENTION", "flex_attention"),
        ("TORCH_SDPA", "sdpa"),
        ("CPU_ATTN", "cpu"),
        # SGLang
        ("fa3", "flash_attn_3"),
        ("fa4", "flash_attn_4"),
        ("flashinfer", "flashinfer"),
        ("triton", "triton"),
        ("torch_native", "sdpa"),
        ("aiter", "rocm_aiter_fa"),
        # transformers
        ("flash_attention_2", "flash_attn"),
        ("flash_attention_3", "flash_attn_3"),
    ],
)
def test_names_of_other_engines_are_known_under_the_true_name(theirs, ours):
    assert EVERY_ONE.find(theirs).label == ours


def test_an_alias_means_nothing_where_its_true_name_is_not_offered():
    with pytest.raises(
        Exception, match=r'"fa3" is not known[^$]*another name of "flash_attn_3", which is not installed'
    ):
        registry("sdpa").find("fa3")


def test_a_backend_that_has_an_alias_as_its_own_name_keeps_it():
    assert registry("sdpa", "FA3", "flash_attn_3").find("fa3").label == "FA3"


def test_aliases_are_written_in_the_compared_form():
    assert [alias for alias in ALIASES if key(alias) != alias] == []
    assert set(ALIASES.values()) & set(ALIASES) == set()


def test_the_nearest_names_come_in_their_own_spelling():
    assert nearest("flash-atn", ["FLASH_ATTN", "sdpa", "flashinfer"])[0] == "FLASH_ATTN"
    assert nearest("zzz", ["FLASH_ATTN", "sdpa"]) == []
