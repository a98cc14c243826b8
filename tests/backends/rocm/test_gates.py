"""Where the backends over AITER run, what they refuse there, and when they are chosen."""

from __future__ import annotations

import pytest

from headstock.backends.rocm import AiterUnified
from headstock.core.attention import AttentionSpec, Capabilities, mismatches
from headstock.core.errors import InvalidInput
from headstock.plugins import load_plugins
from headstock.selector import Selector, read_policy
from headstock.selector.profiles import PROFILES, profile
from headstock.selector.ranking import ranked
from support.doubles.install import distribution

MI300X = profile("mi300x")
MASTER, UNIFIED = "HEADSTOCK_ROCM_AITER", "HEADSTOCK_ROCM_AITER_UNIFIED"


def spec(**fields):
    return AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})


def against(**fields):
    asked = spec(**fields)
    found = (*mismatches(asked, AiterUnified.capabilities(MI300X)), *AiterUnified.refusals(asked, MI300X))
    return sorted({m.field for m in found})


def test_it_runs_on_the_cards_that_aiter_is_made_for():
    runs = {p.name for p in PROFILES if AiterUnified.capabilities(p.device) != Capabilities()}
    assert runs == {"mi300x", "mi325x", "mi355x", "rx9070xt"}


@pytest.mark.parametrize("version", ["0.1.6", "0.2.0"])
def test_other_versions_are_refused_with_the_range(version, tmp_path, monkeypatch):
    distribution(monkeypatch, tmp_path, "amd-aiter", version)
    assert AiterUnified.availability().reasons == (f"package amd-aiter is {version}, needed is >=0.1.7,<0.2",)


def test_the_other_project_called_aiter_is_told_apart(tmp_path, monkeypatch):
    assert AiterUnified.availability().reasons == ("package amd-aiter is not installed",)
    distribution(monkeypatch, tmp_path, "aiter", "0.13")
    assert "another project" in AiterUnified.availability().reasons[1]


@pytest.mark.parametrize(
    ("fields", "fields_against"),
    [
        ({}, []),
        ({"block_size": 24}, ["block_size"]),
        ({"block_size": 8}, ["block_size"]),
        ({"head_size": 16}, ["head_size"]),
        ({"causal": False}, ["causal"]),
        ({"lse": True}, ["lse"]),
        ({"alibi": True, "sinks": True}, ["sinks"]),
        ({"kv_format": "fp16"}, ["kv_format"]),
        ({"kv_format": "fp8_e4m3", "kv_scales": "tensor"}, ["kv_format"]),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "tensor"}, []),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "head"}, ["kv_scales"]),
        ({"kv_source": "ragged"}, ["kv_source"]),
    ],
)
def test_what_unified_attention_refuses(fields, fields_against):
    assert against(**fields) == fields_against


@pytest.mark.parametrize(
    ("switches", "chosen"),
    [({}, "triton"), ({MASTER: "1"}, "triton"), ({UNIFIED: "1"}, "triton"), ({MASTER: "1", UNIFIED: "1"}, "unified")],
)
def test_switches_decide_about_the_automatic_choice_alone(switches, chosen, monkeypatch):
    for name, value in switches.items():
        monkeypatch.setenv(name, value)
    plugins = load_plugins()
    assert ranked(MI300X, plugins)[0].label == {"unified": "rocm_aiter_unified"}.get(chosen, chosen)
    selector = Selector(plugins, read_policy(attention_backend="ROCM_AITER_UNIFIED_ATTN"))
    assert selector.propose({"layer": spec()}, MI300X).choices["layer"].cls is AiterUnified


def test_a_switch_that_is_neither_on_nor_off_is_an_error(monkeypatch):
    monkeypatch.setenv(MASTER, "maybe")
    with pytest.raises(InvalidInput, match=r"HEADSTOCK_ROCM_AITER.*neither 1 nor 0"):
        ranked(MI300X, load_plugins())
