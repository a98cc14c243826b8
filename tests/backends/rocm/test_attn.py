"""rocm_attn: our kernels for every row, and AITER's paged kernel for decodes where that is installed.

That our kernels are right is the business of tests/backends/triton; most runs here with the reference in their place.
"""

from __future__ import annotations

import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.backends.rocm import RocmAttention
from headstock.backends.triton import TritonBackend, environment
from headstock.core.attention import AttentionSpec, Capabilities, Limits, Workspace
from headstock.plugins.conformance import Subject, check, select
from headstock.selector.profiles import profile
from support.conforming import failed, outcomes, passed
from support.doubles.devices import pretend
from support.interpreted import interpreted

LIMITS = Limits(max_num_reqs=4, max_num_tokens=64, max_model_len=256, max_blocks_per_req=16)
BARE = pretend("mi300x", libraries={"torch": "2.13.0"})


def spec(**fields):
    return AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})


class Referred(ReferenceBackend):
    """The reference, as if it ran on the card."""

    @classmethod
    def capabilities(cls, device):
        return super().capabilities(pretend("cpu-avx2", platform="cpu"))


OverReference = RocmAttention.derive("OverReference", kernels=Referred)


def decoder(**fields):
    """What computes the decodes of such a layer."""
    backend = OverReference(spec(**fields), pretend("mi300x"), LIMITS, Workspace("cpu"))
    return "triton" if backend._paged is None else "paged"


@pytest.mark.usefixtures("library")
def test_it_conforms_with_the_paged_kernel():
    found = outcomes(OverReference, pretend("mi300x"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= {"keys", "window", "sinks", "graph", "plans", "padding", "mixed"}


@interpreted
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("pattern", ["dtypes:bfloat16-mixed", "softcap:with-a-window"])
def test_our_kernels_compute_the_other_rows(pattern, monkeypatch):
    monkeypatch.setattr(environment, "offered_instead", lambda device: "")
    subject = Subject(name="rocm_attn", cls=RocmAttention, device=pretend("mi300x"))
    found = list(check(subject, select(subject, pattern)))
    assert failed(found) == []
    assert any(outcome.status == "passed" for outcome in found)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("fields", "by"),
    [
        ({}, "paged"),
        ({"head_size": 64, "block_size": 32, "softcap": 20.0}, "paged"),
        ({"head_size": 96}, "triton"),
        ({"window": (7, 0)}, "triton"),
        ({"sinks": True}, "triton"),
        ({"num_heads": 34}, "triton"),
        ({"dtype": "float32"}, "triton"),
        ({"block_size": 64}, "triton"),
    ],
)
def test_decodes_go_to_the_paged_kernel_where_it_can(fields, by):
    assert decoder(**fields) == by


def test_without_aiter_it_is_our_kernels_for_everything():
    assert decoder() == "triton"
    assert RocmAttention.capabilities(BARE) == TritonBackend.capabilities(BARE)
    assert RocmAttention.requires == ()


def test_it_runs_on_rocm_alone():
    assert RocmAttention.capabilities(profile("h100")) == Capabilities()
    assert RocmAttention.capabilities(profile("mi250x")) == TritonBackend.capabilities(profile("mi250x"))
