"""Running single cases: what is skipped, what fails and as what, and what a lost device does."""

from __future__ import annotations

import pytest
import torch
from conformance.mutants.base import EVERYTHING, Plain

from headstock.core.attention import Capabilities, Device
from headstock.plugins.conformance import Outcome, Subject, run, select

CPU = Device(platform="cpu", name="test CPU", arch="x86_64")


def outcome(cls: type[Plain], case: str) -> Outcome:
    subject = Subject(name="plain", cls=cls, device=CPU)
    (found,) = select(subject, case)
    return run(found, subject)


def offering(**capabilities: object) -> type[Plain]:
    declared = Capabilities(**EVERYTHING | capabilities)
    return type("Offering", (Plain,), {"capabilities": classmethod(lambda cls, device: declared)})


@pytest.mark.parametrize(
    ("capabilities", "case", "reason"),
    [
        ({"sinks": False}, "sinks:zero-decode", "sinks: asked yes, offered nothing"),
        ({"layouts": ("hnd",)}, "mixed:rows=1x3", "layout: asked nhd, offered hnd"),
        ({"layouts": ("unheard-of", "nhd")}, "declared:layout-unheard-of", "layout: asked unheard-of, offered nhd"),
        ({"zero_length_rows": False}, "empty-rows:no-key-cache", "zero_length_rows: asked yes, offered nothing"),
        ({"needs_zeroed_cache": True}, "unowned:nan-decode", "poison: asked nan, offered a zeroed cache"),
        ({"exact_seq_lens": True}, "lengths:decode", "seq_lens_cpu: asked nothing, offered exact lengths"),
        ({"max_cache_elements": 1000}, "offsets:read-nhd-bfloat16", "max_cache_elements: 1000 elements are too few"),
        ({"latents": frozenset({(512, 64)})}, "declared:masks-and-latents", "beyond what this kit can check: latent"),
    ],
    ids=lambda value: value if isinstance(value, str) and ":" in value else "",
)
def test_what_is_not_declared_is_skipped_with_the_reason(capabilities, case, reason):
    found = outcome(offering(**capabilities), case)
    assert found.status == "skipped"
    assert reason in found.reason


def test_a_small_cache_is_checked_up_to_what_is_declared():
    assert outcome(offering(max_cache_elements=10**6), "offsets:read-nhd-bfloat16").status == "passed"


class Wild(Plain):
    """Computes right, and does something else in `forward`."""

    def mischief(self, *, query, key, kv_cache, out, lse_out):
        raise NotImplementedError

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        self.mischief(query=query, key=key, kv_cache=kv_cache, out=out, lse_out=lse_out)


@pytest.mark.parametrize(
    ("mischief", "convention", "problem"),
    [
        (lambda kv_cache, **_: kv_cache.v[-1].zero_(), "inputs", "forward wrote into plane v of the cache"),
        (lambda query, **_: query.zero_(), "inputs", "forward wrote into query"),
        (lambda key, **_: key.zero_(), "inputs", "forward wrote into key"),
        (
            lambda out, **_: out.as_strided((1,), (1,), out.storage_offset() - 1).zero_(),
            "bounds",
            "forward wrote outside of out",
        ),
        (
            lambda lse_out, **_: lse_out.as_strided((1,), (1,), lse_out.storage_offset() - 1).zero_(),
            "bounds",
            "forward wrote outside of lse_out",
        ),
        (
            lambda kv_cache, **_: kv_cache.k.as_strided((1,), (1,), kv_cache.k.storage_offset() - 1).zero_(),
            "bounds",
            "forward wrote outside of plane k of the cache",
        ),
        (lambda out, **_: out[-1].fill_(float("inf")), "padding", "out of a row of padding is not finite"),
    ],
)
def test_what_no_case_is_about_is_noticed_all_the_same(mischief, convention, problem):
    cls = type("Mischief", (Wild,), {"mischief": lambda self, **given: mischief(**given)})
    found = outcome(cls, "mixed:rows=1x5+3x8,hq=4,hkv=2,lse=yes,pad=2,padq=1")
    assert (found.status, found.convention, found.reason) == ("failed", convention, problem)


def test_nan_from_slots_of_nobody_is_told_from_wrong_numbers():
    class OneSlot(Plain):
        def slots(self, plan, row):
            return super().slots(plan, row).new_full((self.num_keys(plan, row),), 1)

    class Tail(Plain):
        def read(self, cache, layer, slots):
            key, value = super().read(cache, layer, slots)
            behind = super().read(cache, layer, torch.ones(1, dtype=torch.long))[1]
            return key, value + 0 * behind

    assert outcome(OneSlot, "mixed:rows=1x5").convention == "mixed"
    assert outcome(Tail, "mixed:rows=1x5").convention == "unowned"


def test_a_lost_device_ends_the_search_for_a_smaller_case(monkeypatch):
    class Wrong(Plain):
        def scaled(self, logits):
            return logits

    case = "mixed:rows=1x50+3x8,hq=4,hkv=2"
    assert outcome(Wrong, case).problem != case.partition(":")[2]
    monkeypatch.setattr(Subject, "lost", True)
    assert outcome(Wrong, case).problem == case.partition(":")[2]


def test_a_device_that_answers_no_more_is_lost(monkeypatch):
    def gone(self):
        raise RuntimeError("an illegal memory access was encountered")

    subject = Subject(name="plain", cls=Plain, device=CPU)
    assert not subject.lost
    monkeypatch.setattr(Subject, "_ask_the_device", gone)
    assert subject.lost
