"""The backends over AITER keep every convention, over a double that keeps the library's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends._aiter_ops import AiterOptions
from headstock.backends.rocm import AiterFlashAttention, AiterUnified, ShuffledFlashAttention
from headstock.backends.rocm.varlen import Varlen
from support.conforming import failed, outcomes, passed
from support.doubles import aiter
from support.doubles.devices import pretend
from support.doubles.install import distribution, install
from support.over_reference import OverReference

pytestmark = pytest.mark.timeout(600)  # the kit is long on a loaded machine

SHORT = Varlen.derive("Short", context_tokens=48)
"""It gathers contexts in many pieces."""
InPieces = AiterFlashAttention.derive("InPieces", varlen=SHORT)
Shuffled = ShuffledFlashAttention.derive("Shuffled", varlen=SHORT)


@pytest.mark.usefixtures("library")
def test_unified_attention_conforms():
    found = outcomes(AiterUnified, pretend("mi300x"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= {"keys", "window", "softcap", "alibi", "sinks", "graph", "plans", "padding", "mixed"}


@pytest.mark.usefixtures("library")
def test_flash_attention_conforms():
    found = outcomes(InPieces, pretend("mi300x"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= {
        "keys", "window", "softcap", "alibi", "sinks", "kv-formats", "graph", "plans", "padding", "chunks", "mixed"
    }  # fmt: skip


@pytest.mark.usefixtures("library")
def test_flash_attention_conforms_over_shuffled_planes():
    found = outcomes(Shuffled, pretend("mi300x"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= {"keys", "writing", "graph", "plans", "padding", "chunks", "placement", "mixed"}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cls", [InPieces, Shuffled, AiterUnified, OverReference])
def test_every_call_gives_an_op_all_its_arguments(cls):
    # These have no defaults, as a replacement need not have any.
    names = {
        "flash_attn_varlen_func": "aiter:varlen", "unified_attention": "aiter:unified",
        "paged_attention": "aiter_paged:v1", "paged_attention_rocm": "aiter_paged:rocm",
        "paged_attention_common": "aiter_paged:common",
    }  # fmt: skip
    ops = AiterOptions(aiter_ops={op: f"support.doubles.{name}" for op, name in names.items()})
    found = outcomes(cls, pretend("mi300x"), only={"keys", "chunks"}, options=ops)
    assert failed(found) == []
    assert passed(found) == {"keys", "chunks"}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("cls", "card", "version", "releases"),
    [
        (AiterUnified, "mi300x", "0.1.20.post1", aiter.NEW),
        (AiterUnified, "mi355x", "0.1.20.post1", aiter.NEW),
        (AiterUnified, "rx9070xt", "0.1.10", aiter.NEW),
        (AiterUnified, "mi300x", "0.1.7", aiter.OLD),
        (InPieces, "mi300x", "0.1.20.post1", aiter.NEW),
        (AiterFlashAttention, "mi355x", "0.1.7", aiter.OLD),
        (Shuffled, "mi300x", "0.1.20.post1", aiter.NEW),
    ],
)
def test_they_conform_at_level_full(cls, card, version, releases, monkeypatch, tmp_path):
    distribution(monkeypatch, tmp_path, "amd-aiter", version)
    install(monkeypatch, aiter.aiter(releases))
    device = pretend(card, libraries={"amd-aiter": version})
    assert failed(outcomes(cls, device, level="full")) == []


class CountsTheWindowTwice(AiterUnified):
    """Hands over the window as models write it, current key included."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        left, right = self._fixed["window_size"]
        self._fixed["window_size"] = (left + 1 if left >= 0 else left, right)


class ForgetsTheScale(AiterUnified):
    """Leaves the scale to the library's default for every layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._fixed["softmax_scale"] = self.spec.head_size**-0.5


class ForgetsTheContext(SHORT):
    """Leaves out the last piece."""

    def plan(self, batch):
        plan = super().plan(batch)
        return replace(plan, parts=tuple(replace(part, contexts=part.contexts[:-1]) for part in plan.parts))


class CountsTheSinkInEachPart(SHORT):
    """Merges the sink with every piece of a row's context as well."""

    def _call(self, layer, *arguments, causal=True, **changes):
        result = super()._call(layer, *arguments, causal=causal, **changes)
        if causal or layer.sinks is None:
            return result
        out, lse = result
        return out * torch.sigmoid(lse.T - layer.sinks)[..., None], torch.logaddexp(lse, layer.sinks[:, None])


class ForgetsTheScales(SHORT):
    """Takes what an 8-bit cache holds for K and V."""

    def _gather(self, layer, cache, keys):
        return super()._gather(replace(layer, k_scale_float=1.0, v_scale_float=1.0), cache, keys)


class MergesWithAlibi(SHORT):
    """Gathers contexts in pieces, whatever the kernel measures ALiBi from."""

    def plan(self, batch):
        alibi, self.spec = self.spec, replace(self.spec, alibi=False)
        try:
            return super().plan(batch)
        finally:
            self.spec = alibi


def with_varlen(cls):
    return AiterFlashAttention.derive(f"{cls.__name__}There", varlen=cls)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("cls", "convention"),
    [
        (CountsTheWindowTwice, "window"),
        (ForgetsTheScale, "scale"),
        (with_varlen(ForgetsTheContext), "chunks"),
        (with_varlen(CountsTheSinkInEachPart), "sinks"),
        (with_varlen(ForgetsTheScales), "kv-formats"),
        (with_varlen(MergesWithAlibi), "alibi"),
    ],
)
def test_the_kit_catches_adapters_that_take_the_library_for_another(cls, convention):
    found = outcomes(cls, pretend("mi300x"), only={convention})
    assert convention in {o.convention for o in found if o.status == "failed"}
