"""Where FlashInfer runs, what it refuses there, and what its double checks."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import torch

from headstock.backends.flashinfer import FlashInfer
from headstock.core.attention import AttentionSpec, Capabilities, mismatches
from headstock.core.errors import InvalidInput
from headstock.selector.profiles import profile
from support.doubles import flashinfer
from support.doubles.checks import unviolated
from support.doubles.devices import pretend
from support.doubles.install import distribution

HALF = torch.bfloat16


def against(card, **fields):
    device = profile(card)
    spec = AttentionSpec(**{"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16", **fields})
    return sorted(
        {m.field for m in (*mismatches(spec, FlashInfer.capabilities(device)), *FlashInfer.refusals(spec, device))}
    )


@pytest.mark.parametrize(
    ("capability", "runs"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 1), True), ((12, 2), False)]
)
def test_compute_capabilities(capability, runs):
    assert (FlashInfer.capabilities(pretend("a100", capability=capability)) != Capabilities()) is runs


def test_no_other_platform():
    assert FlashInfer.capabilities(profile("mi300x")) == Capabilities()
    assert FlashInfer.capabilities(profile("cpu-avx2")) == Capabilities()


@pytest.mark.parametrize("version", ["0.6.9", "0.8.0"])
def test_other_versions_are_refused_with_the_range(version, tmp_path, monkeypatch):
    assert FlashInfer.capabilities(pretend("h100", libraries={"flashinfer-python": version})) == Capabilities()
    distribution(monkeypatch, tmp_path, "flashinfer-python", version)
    assert FlashInfer.availability().reasons == (f"package flashinfer-python is {version}, needed is >=0.7,<0.8",)


def test_the_version_the_doubles_know_is_taken(tmp_path, monkeypatch):
    distribution(monkeypatch, tmp_path, "flashinfer-python", "0.7.4")
    assert FlashInfer.availability().available


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"alibi": True}, "alibi"),
        ({"head_size": 96}, "head_size"),
        ({"dtype": "float32"}, "dtype"),
        ({"kv_format": "fp16"}, "kv_format"),
        ({"kv_format": "fp8_e4m3", "kv_scales": "head"}, "kv_scales"),
        ({"causal": False, "window": (3, 3)}, "window"),
        ({"kv_source": "ragged"}, "kv_source"),
        ({"sinks": True}, "sinks"),
    ],
)
def test_what_it_refuses(fields, field):
    assert field in against("h100", **fields)


def test_8_bit_caches_with_a_scale_are_taken():
    assert against("h100", kv_format="fp8_e4m3", kv_scales="tensor") == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"window": (127, 0)}, []),
        ({"block_size": 128}, ["block_size"]),
        ({"head_size": 256}, ["head_size"]),
        ({"softcap": 30.0}, ["softcap"]),
        ({"lse": True}, ["lse"]),
        ({"causal": False}, ["causal"]),
        ({"kv_format": "fp8_e4m3"}, ["kv_format"]),
    ],
)
def test_sinks_are_taken_on_blackwell_with_what_their_kernels_know(fields, expected):
    assert against("b200", sinks=True, **fields) == expected


@pytest.mark.parametrize("value", [0, -1, 1.5, "128", True])
def test_options_are_checked(value):
    with pytest.raises(InvalidInput, match="workspace_mib"):
        FlashInfer.parse_options({"workspace_mib": value})


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def prefill(run=None, wrapper=None, **changes):
    """Two rows of 2 queries, 5 and 3 keys, in pages 1, 2 and 0 of 4 tokens."""
    own = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper(
        **{"float_workspace_buffer": torch.zeros(8, dtype=torch.uint8), **(wrapper or {})}
    )
    arguments = {
        "qo_indptr": ints(0, 2, 4), "paged_kv_indptr": ints(0, 2, 3), "paged_kv_indices": ints(1, 2, 0),
        "paged_kv_last_page_len": ints(1, 3), "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "page_size": 4,
        "q_data_type": HALF,
    }  # fmt: skip
    own.plan(**arguments | changes)
    cache = torch.randn(3, 4, 2, 64, dtype=HALF)
    given = {"q": torch.randn(4, 4, 64, dtype=HALF), "paged_kv_cache": (cache, cache)}
    return own.run(**given | (run or {}))


def decode(wrapper=None, **changes):
    own = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(8, dtype=torch.uint8), **{"use_tensor_cores": True, **(wrapper or {})}
    )
    arguments = {
        "indptr": ints(0, 2, 3), "indices": ints(1, 2, 0), "last_page_len": ints(1, 3), "num_qo_heads": 4,
        "num_kv_heads": 2, "head_dim": 64, "page_size": 4, "q_data_type": HALF,
    }  # fmt: skip
    own.plan(**arguments | changes)
    cache = torch.randn(3, 4, 2, 64, dtype=HALF)
    return own.run(torch.randn(2, 4, 64, dtype=HALF), (cache, cache))


def unplanned():
    wrapper = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper(torch.zeros(8, dtype=torch.uint8))
    return wrapper.run(torch.zeros(1, 1, 64), (torch.zeros(1), torch.zeros(1)))


NINE = {"paged_kv_indices_buffer": torch.zeros(9, dtype=torch.int32)}
ONE_ROW = {"paged_kv_indptr_buffer": ints(0, 0), "paged_kv_last_page_len_buffer": ints(0)}
GRAPH = {"use_cuda_graph": True, "paged_kv_indptr_buffer": ints(0, 0, 0), "paged_kv_last_page_len_buffer": ints(0, 0)}


REFUSED = [
    (prefill, {"q_data_type": "float16"}, ValueError, "does not match the q_data_type"),
    (prefill, {"kv_data_type": torch.float16}, ValueError, "does not match the kv_data_type"),
    (prefill, {"qo_indptr": ints(0, 2, 5)}, ValueError, "does not match qo_indptr"),
    (prefill, {"qo_indptr": ints(0, 2, 4).long()}, RuntimeError, "qo_indptr must have dtype"),
    (prefill, {"paged_kv_indices": ints(1, 2, 0).long()}, RuntimeError, "indices must have dtype"),
    (prefill, {"paged_kv_last_page_len": ints(0, 3)}, RuntimeError, "from 1 to page_size"),
    (prefill, {"head_dim_qk": 96}, RuntimeError, "head_dim"),
    (prefill, {"page_size": 8}, RuntimeError, "other pages"),
    (prefill, {"run": {"lse_base": "e"}}, ValueError, "lse_base"),
    (prefill, {"run": {"window_left": 3}}, AssertionError, None),
    (prefill, {"run": {"out": torch.zeros(4, 4, 64)}}, RuntimeError, "another shape or dtype"),
    (prefill, {"run": {"logits_soft_cap": 3.0}}, TypeError, "logits_soft_cap"),
    (prefill, {"wrapper": {"kv_layout": "nhd"}}, KeyError, "kv_layout"),
    (prefill, {"wrapper": {"backend": "trtllm-gen"}}, RuntimeError, "pages of 16, 32 and 64"),
    (prefill, {"wrapper": {"backend": "trtllm-gen"}, "logits_soft_cap": 1.0, "causal": True}, AssertionError, None),
    (prefill, {"wrapper": {"backend": "trtllm-gen"}, "window_left": 1}, NotImplementedError, "Sliding-window"),
    (prefill, {"wrapper": {"float_workspace_buffer": torch.zeros(8)}}, RuntimeError, "made of bytes"),
    (prefill, {"wrapper": {"use_cuda_graph": True}}, RuntimeError, "knows no graphs"),
    (prefill, {"paged_kv_indptr": ints(0, 2, 3).long()}, RuntimeError, "indptr must have dtype"),
    (prefill, {"paged_kv_indptr": ints(0, 2, 4)}, RuntimeError, "as many as indptr says"),
    (prefill, {"paged_kv_last_page_len": ints(1, 3).long()}, RuntimeError, "last_page_len must have dtype"),
    (prefill, {"num_qo_heads": 5}, RuntimeError, "a multiple of num_kv_heads"),
    (unplanned, {}, RuntimeError, "plan"),
    (decode, {"softcap": 3.0}, TypeError, "softcap"),
    (decode, {"num_qo_heads": 6, "wrapper": {"use_tensor_cores": False}}, RuntimeError, "group_size"),
    (decode, {"wrapper": {"use_cuda_graph": True}}, ValueError, "should be a torch.Tensor"),
    (decode, {"wrapper": GRAPH | {"paged_kv_indices_buffer": ints(0)}}, ValueError, "allocated buffer"),
    (decode, {"wrapper": GRAPH | ONE_ROW | NINE}, ValueError, "fixed in cudagraph mode"),
    (decode, {"wrapper": GRAPH | NINE | {"paged_kv_indptr_buffer": ints(0)}}, ValueError, "should be batch_size"),
]


@pytest.mark.parametrize(("call", "changes", "error", "message"), REFUSED)
def test_the_double_checks_what_the_library_checks(call, changes, error, message):
    with pytest.raises(error, match=message):
        call(**changes)


def test_the_templates_drop_sinks_without_a_word():
    torch.manual_seed(0)
    plain = prefill()
    torch.manual_seed(0)
    assert torch.equal(plain, prefill(run={"sinks": torch.full((4,), 5.0)}))


def test_every_check_is_violated():
    calls = [partial(call, **changes) for call, changes, *_ in REFUSED]
    assert unviolated([flashinfer], calls) == []
