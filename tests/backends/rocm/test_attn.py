"""rocm_attn: our kernels for every row, and AITER's paged kernel for decodes where that is installed.

That our kernels are right is the business of tests/backends/triton; most runs here with the reference in their place.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstock.backends._aiter_ops import AiterOptions
from headstock.backends.rocm import RocmAttention
from headstock.backends.triton import TritonBackend, environment
from headstock.core.attention import AttentionSpec, Capabilities, Limits, Workspace
from headstock.core.errors import BackendError
from headstock.plugins import load_plugins
from headstock.plugins.conformance import Subject, check, select
from headstock.selector import Selector, read_policy
from headstock.selector.profiles import profile
from support.backends import layers
from support.conforming import failed, outcomes, passed
from support.doubles.devices import pretend
from support.interpreted import interpreted
from support.over_reference import OverReference

LIMITS = Limits(max_num_reqs=4, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)
BARE = pretend("mi300x", libraries={"torch": "2.13.0"})


def spec(**fields):
    return AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})


@pytest.fixture
def compiling(monkeypatch):
    """Triton compiles for cards, as it does outside of these tests."""
    monkeypatch.setattr(environment, "offered_instead", lambda device: "")


def decoder(**fields):
    """What computes the decodes of such a layer."""
    limits = replace(LIMITS, max_model_len=fields.pop("max_model_len", 256))
    backend = OverReference(spec(**fields), pretend("mi300x"), limits, Workspace("cpu"))
    return "paged" if "decode" in backend._parts else "triton"


@pytest.mark.usefixtures("library")
def test_it_conforms_with_the_paged_kernel():
    found = outcomes(OverReference, pretend("mi300x"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= {"keys", "window", "sinks", "alibi", "writing", "graph", "plans", "padding", "mixed"}


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("library")
def test_it_conforms_with_the_paged_kernel_in_all_that_is_made_up():
    # Of level full most is the reference's, which takes its time.
    assert failed(outcomes(OverReference, pretend("mi300x"))) == []


@interpreted
@pytest.mark.usefixtures("library", "compiling")
@pytest.mark.parametrize("pattern", ["dtypes:bfloat16-mixed", "softcap:with-a-window", "writing:rows-*"])
def test_our_kernels_compute_the_other_rows(pattern):
    subject = Subject(name="rocm_attn", cls=RocmAttention, device=pretend("mi300x"))
    found = list(check(subject, select(subject, pattern)))
    assert failed(found) == []
    assert any(outcome.status == "passed" for outcome in found)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("fields", "by"),
    [
        ({}, "paged"),
        ({"head_size": 64, "block_size": 32, "scale": 0.3}, "paged"),
        ({"alibi": True}, "paged"),
        ({"max_model_len": 128 * 1024}, "paged"),
        ({"max_model_len": 128 * 1024 + 1}, "triton"),
        ({"softcap": 20.0}, "triton"),
        ({"head_size": 96}, "triton"),
        ({"head_size_v": 64}, "triton"),
        ({"kv_format": "fp8_e4m3fnuz", "kv_scales": "tensor"}, "triton"),
        ({"window": (7, 0)}, "triton"),
        ({"sinks": True}, "triton"),
        ({"num_heads": 34}, "triton"),
        ({"dtype": "float32"}, "triton"),
        ({"block_size": 64}, "triton"),
    ],
)
def test_decodes_go_to_the_paged_kernel_where_it_can(fields, by):
    assert decoder(**fields) == by


@pytest.mark.usefixtures("library")
def test_a_kernel_that_takes_its_place_has_none_of_its_limits():
    options = AiterOptions(aiter_ops={"paged_attention_rocm": "support.doubles.aiter_paged:rocm"})
    limits = replace(LIMITS, max_model_len=2**18)
    backend = OverReference(spec(), pretend("mi300x"), limits, Workspace("cpu"), options)
    assert backend.make_parts().keys() == {"decode", "prefill"}


def test_without_aiter_it_is_our_kernels_for_everything():
    assert decoder() == "triton"
    assert RocmAttention.capabilities(BARE) == TritonBackend.capabilities(BARE)
    assert RocmAttention.requires == ()
    assert failed(outcomes(OverReference, BARE, only={"keys", "plans", "writing", "graph"})) == []


@pytest.mark.usefixtures("compiling")
def test_with_aiter_k_and_v_lie_as_its_kernel_reads_them():
    assert RocmAttention.capabilities(profile("mi300x")).layouts == ("x_packed",)
    choose = Selector(load_plugins(), read_policy(attention_backend="rocm_attn", environ={})).propose
    assert choose({"layer": spec()}, profile("mi300x")).layout.name == "x_packed"
    with pytest.raises(BackendError, match="head_size: asked 20, offered multiples of 8 in x_packed"):
        choose({"layer": spec(head_size=20)}, profile("mi300x"))


@pytest.mark.usefixtures("compiling")
def test_a_layer_whose_backend_does_not_read_them_is_told_of_with_both_sides():
    policy = {"attention_policy": {"0": "rocm_attn", "1": "rocm_aiter_unified"}, "environ": {}}
    with pytest.raises(BackendError) as error:
        Selector(load_plugins(), read_policy(**policy)).propose(layers(spec(), spec()), profile("mi300x"))
    assert str(error.value).splitlines()[:3] == [
        "the attention backends do not agree on a layout of the KV cache:",
        "  rocm_attn for model.layers.0.self_attn.attn: x_packed",
        "  rocm_aiter_unified for model.layers.1.self_attn.attn: nhd",
    ]


@pytest.mark.parametrize("card", ["mi250x", "rx7900xtx", "rx9070xt"])
def test_on_cards_that_the_kernel_is_not_made_for_it_is_our_kernels(card):
    device = pretend(card, libraries={"amd-aiter": "0.1.20"})
    assert RocmAttention.capabilities(device) == TritonBackend.capabilities(device)


def test_it_runs_on_rocm_alone():
    assert RocmAttention.capabilities(profile("h100")) == Capabilities()
