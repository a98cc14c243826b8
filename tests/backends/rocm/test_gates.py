"""Where the backends over AITER run, what they refuse there, and when they are chosen."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from headstock.backends.rocm import AiterFlashAttention, AiterUnified, RocmAttention, ShuffledFlashAttention
from headstock.backends.rocm.gathered import continued, windowed
from headstock.backends.rocm.paged import PagedAttention
from headstock.backends.triton import TritonBackend
from headstock.core.attention import AttentionSpec, Capabilities, Limits, Workspace, mismatches
from headstock.core.errors import InvalidInput
from headstock.plugins import load_plugins
from headstock.selector import Selector, explain, list_backends, read_policy
from headstock.selector.profiles import PROFILES, profile
from headstock.selector.ranking import ranked
from support.attention import make_batch
from support.doubles.devices import pretend
from support.doubles.install import distribution

MI300X = profile("mi300x")
MASTER, MHA, UNIFIED = "HEADSTOCK_ROCM_AITER", "HEADSTOCK_ROCM_AITER_MHA", "HEADSTOCK_ROCM_AITER_UNIFIED"


def spec(**fields):
    return AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})


def against(cls, **fields):
    asked = spec(**fields)
    found = (*mismatches(asked, cls.capabilities(MI300X)), *cls.refusals(asked, MI300X))
    return sorted({m.field for m in found})


@pytest.mark.parametrize(
    ("cls", "cards"),
    [
        (AiterFlashAttention, {"mi300x", "mi325x", "mi355x"}),
        (ShuffledFlashAttention, {"mi300x", "mi325x", "mi355x"}),
        (AiterUnified, {"mi300x", "mi325x", "mi355x", "rx9070xt"}),
    ],
)
def test_each_runs_on_the_cards_that_its_kernels_are_made_for(cls, cards):
    assert {p.name for p in PROFILES if cls.capabilities(p.device) != Capabilities()} == cards


@pytest.mark.parametrize("cls", [AiterFlashAttention, AiterUnified])
@pytest.mark.parametrize("version", ["0.1.6", "0.2.0"])
def test_other_versions_are_refused_with_the_range(cls, version, tmp_path, monkeypatch):
    distribution(monkeypatch, tmp_path, "amd-aiter", version)
    (reason,) = cls.availability().reasons
    assert re.fullmatch(rf"package amd-aiter is {version}, needed is >=0\.1\.[\w.]+,<0\.2", reason)
    assert cls.capabilities(pretend("mi300x", libraries={"amd-aiter": version})) == Capabilities()


@pytest.mark.parametrize("version", ["0.1.6", "0.2.0"])
def test_with_another_version_the_third_is_our_kernels(version):
    other = replace(MI300X, libraries={**MI300X.libraries, "amd-aiter": version})
    assert RocmAttention.capabilities(other) == TritonBackend.capabilities(other)
    assert RocmAttention.ops(spec(), other, RocmAttention.Options()) == ()
    assert RocmAttention.ops(spec(), MI300X, RocmAttention.Options()) != ()


def test_the_other_project_called_aiter_is_told_apart(tmp_path, monkeypatch):
    assert AiterUnified.availability().reasons == ("package amd-aiter is not installed",)
    distribution(monkeypatch, tmp_path, "aiter", "0.13")
    assert "another project" in AiterUnified.availability().reasons[1]


@pytest.mark.parametrize(
    ("version", "refused"), [("0.1.7.post2.dev18", True), ("0.1.8", True), ("0.1.9.post1", False), ("0.1.20", False)]
)
def test_a_softcap_that_a_release_drops_is_refused(version, refused):
    old = pretend("mi300x", libraries={"amd-aiter": version})
    found = AiterFlashAttention.refusals(spec(softcap=50.0), old)
    assert [m.field for m in found] == ["softcap"] * refused
    assert not refused or "amd-aiter >=0.1.9" in str(found[0])
    for fields in ({}, {"softcap": 50.0, "dtype": "float16", "kv_format": "fp16"}, {"softcap": 50.0, "head_size": 256}):
        assert AiterFlashAttention.refusals(spec(**fields), old) == ()


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
    assert against(AiterUnified, **fields) == fields_against


@pytest.mark.parametrize(
    ("fields", "fields_against"),
    [
        ({}, []),
        ({"window": (7, 0), "sinks": True, "softcap": 20.0, "head_size": 256, "block_size": 32}, []),
        ({"block_size": 64}, ["block_size"]),
        ({"head_size": 96}, ["head_size"]),
        ({"alibi": True, "window": (7, 0)}, []),
        ({"alibi": True, "sinks": True}, ["sinks"]),
        ({"alibi": True, "softcap": 20.0}, ["alibi"]),
        ({"lse": True}, ["lse"]),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "tensor", "sinks": True}, []),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "head"}, ["kv_scales"]),
        ({"kv_format": "fp8_e4m3", "kv_scales": "tensor"}, ["kv_format"]),
        ({"kv_format": "int8_per_tensor", "kv_scales": "tensor"}, ["kv_format"]),
    ],
)
def test_what_flash_attention_refuses(fields, fields_against):
    assert against(AiterFlashAttention, **fields) == fields_against


@pytest.mark.parametrize(
    ("fields", "fields_against"),
    [
        ({}, []),
        ({"num_heads": 32}, []),
        ({"num_heads": 34}, ["num_heads"]),
        ({"scale": 0.3}, ["scale"]),
        ({"block_size": 32}, ["block_size"]),
        ({"head_size": 64, "scale": 0.0}, ["head_size"]),
        ({"window": (7, 0), "sinks": True}, ["sinks", "window"]),
        ({"softcap": 20.0, "alibi": True}, ["alibi", "softcap"]),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "tensor"}, ["kv_format", "kv_scales"]),
    ],
)
def test_what_flash_attention_over_shuffled_planes_refuses(fields, fields_against):
    assert against(ShuffledFlashAttention, **fields) == fields_against


def test_each_reads_its_own_layout_and_the_versions_that_can():
    assert AiterFlashAttention.capabilities(MI300X).layouts == ("nhd",)
    assert ShuffledFlashAttention.capabilities(MI300X).layouts == ("shuffle",)
    older = pretend("mi300x", libraries={"amd-aiter": "0.1.9"})
    assert AiterFlashAttention.capabilities(older) != Capabilities()
    assert ShuffledFlashAttention.capabilities(older) == Capabilities()


@pytest.mark.parametrize(
    ("fields", "by"),
    [
        ({}, PagedAttention),
        ({"head_size": 64, "softcap": 20.0}, PagedAttention),
        ({"alibi": True}, PagedAttention),
        ({"head_size": 256}, AiterUnified),
        ({"window": (7, 0)}, AiterUnified),
        ({"sinks": True}, AiterUnified),
        ({"num_heads": 34, "num_kv_heads": 2}, AiterUnified),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "tensor"}, AiterUnified),
    ],
)
@pytest.mark.usefixtures("library")
def test_decodes_go_to_the_kernel_that_can(fields, by):
    limits = Limits(max_num_reqs=4, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)
    backend = AiterFlashAttention(spec(**fields), pretend("mi300x"), limits, Workspace("cpu"))
    assert type(backend.make_parts()["decode"]) is by


def test_contexts_are_gathered_within_the_budget():
    table = torch.arange(1, 25, dtype=torch.int32).view(3, 8)
    batch = make_batch([2, 3, 2], [100, 20, 60], table)
    part = continued(batch, 0, 16, budget=30)
    assert [len(keys.slots) for keys in part.contexts] == [30, 27, 20, 20, 20, 18, 10, 10, 10, 8]
    assert sum(len(keys.slots) for keys in part.contexts) == 98 + 17 + 58
    parts = list(windowed(batch, 5, 16, budget=30, left=10))
    assert [len(part.keys.slots) for part in parts] == [25, 12]
    assert [part.tokens for part in parts] == [slice(5, 10), slice(10, 12)]


FA, UNI = "rocm_aiter_fa", "rocm_aiter_unified"


@pytest.mark.parametrize(
    ("switches", "first"),
    [
        ({}, ["triton"]),
        ({MASTER: "1"}, [FA, "triton"]),
        ({MASTER: "1", MHA: "0"}, ["triton"]),
        ({MHA: "1", UNIFIED: "1"}, ["triton"]),
        ({MASTER: "1", UNIFIED: "1"}, [FA, UNI, "triton"]),
        ({MASTER: "1", MHA: "0", UNIFIED: "1"}, [UNI, "triton"]),
    ],
)
def test_switches_decide_about_the_automatic_choice_alone(switches, first, monkeypatch):
    for name, value in switches.items():
        monkeypatch.setenv(name, value)
    plugins = load_plugins()
    assert [offer.label for offer in ranked(MI300X, plugins)][: len(first)] == first
    for name, cls in (("ROCM_AITER_UNIFIED_ATTN", AiterUnified), ("aiter", AiterFlashAttention)):
        selector = Selector(plugins, read_policy(attention_backend=name))
        assert selector.propose({"layer": spec()}, MI300X).choices["layer"].cls is cls


OFF = "switched off (HEADSTOCK_ROCM_AITER is not set): not chosen automatically"
MORE = (
    "switched off (HEADSTOCK_ROCM_AITER is not set, HEADSTOCK_ROCM_AITER_UNIFIED is not set): not chosen automatically"
)


@pytest.mark.parametrize(
    ("switches", "notes"),
    [
        ({}, (f"{OFF}; --attention-backend {FA} works", f"{MORE}; --attention-backend {UNI} works")),
        ({MASTER: "1", UNIFIED: "1"}, ("", "")),
        (
            {MASTER: "1", MHA: "off"},
            (
                "switched off (HEADSTOCK_ROCM_AITER_MHA is off): not chosen automatically; "
                f"--attention-backend {FA} works",
                "switched off (HEADSTOCK_ROCM_AITER_UNIFIED is not set): not chosen automatically; "
                f"--attention-backend {UNI} works",
            ),
        ),
    ],
)
def test_switched_off_is_told_apart_from_found_and_supported(switches, notes, monkeypatch):
    for name, value in switches.items():
        monkeypatch.setenv(name, value)
    rows = {row.name: row for row in list_backends(Selector(load_plugins()), MI300X).backends}
    assert (rows[FA].note, rows[UNI].note) == notes
    assert (rows[FA].verdict, rows[FA].reasons) == ("available", ())
    candidates = explain(Selector(load_plugins()), {"layer": spec()}, MI300X).groups[0].candidates
    found = {candidate.backend: candidate.note for candidate in candidates}
    assert (found[FA], found[UNI]) == tuple(note.partition("; ")[0] for note in notes)


def test_neither_found_nor_switched_on_gives_both_reasons():
    rows = {row.name: row for row in list_backends(Selector(load_plugins()), replace(MI300X, assumed=False)).backends}
    assert (rows[FA].verdict, rows[FA].note) == ("unavailable", OFF)
    assert rows[FA].reasons == ("package amd-aiter is not installed",)


def test_neither_found_nor_supported_gives_both_reasons():
    older = replace(profile("mi250x"), assumed=False)
    rows = {row.name: row for row in list_backends(Selector(load_plugins()), older).backends}
    assert rows[FA].reasons == ("package amd-aiter is not installed", "does not run on rocm (gfx90a)")
    assert rows[FA].note == OFF
    assert {row.note for row in list_backends(Selector(load_plugins()), profile("h100")).backends} == {""}


def test_a_switch_that_is_neither_on_nor_off_is_an_error(monkeypatch):
    monkeypatch.setenv(MASTER, "maybe")
    with pytest.raises(InvalidInput, match=r"HEADSTOCK_ROCM_AITER.*neither 1 nor 0"):
        ranked(MI300X, load_plugins())
