"""The three adapters keep every convention, over doubles that keep their libraries'."""

from __future__ import annotations

import pytest

from headstock.backends.flash_attn import FlashAttention2, FlashAttention3, FlashAttention4
from support.conforming import failed, outcomes, passed
from support.doubles import dao
from support.doubles.devices import pretend
from support.doubles.install import install

pytestmark = pytest.mark.timeout(600)  # the kit is long on a loaded machine

CACHED = {"keys", "window", "lse", "softcap", "empty-rows", "graph", "plans", "padding", "chunks", "mixed"}


def test_flash_attn_conforms(fa2):
    found = outcomes(FlashAttention2, pretend("h100"), made_up=60)
    assert failed(found) == []
    assert passed(found) >= CACHED | {"alibi", "unowned"}


def test_flash_attn_3_conforms(fa3):
    found = outcomes(FlashAttention3, pretend("h100"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= CACHED


def test_flash_attn_4_conforms(fa4):
    found = outcomes(FlashAttention4, pretend("h100"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= CACHED | {"sinks"}


def test_flash_attn_conforms_where_triton_computes_for_amd(monkeypatch):
    """That build ignores pages, window and softcap; what is left of it is right."""
    install(monkeypatch, dao.flash_attn_2(triton_amd=True))
    found = outcomes(FlashAttention2, pretend("mi300x"), made_up=40)
    assert failed(found) == []
    assert passed(found) >= {"keys", "ragged", "lse", "mixed"}


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("cls", "card", "double"),
    [
        (FlashAttention2, "h100", dao.flash_attn_2),
        (FlashAttention2, "a100", dao.flash_attn_2),
        (FlashAttention2, "mi300x", lambda: dao.flash_attn_2(triton_amd=True)),
        (FlashAttention3, "h100", dao.flash_attn_3),
        (FlashAttention3, "h100", lambda: dao.flash_attn_3("flash-attn-3-at-2.8.3")),
        (FlashAttention4, "h100", lambda: dao.flash_attn_4(90)),
        (FlashAttention4, "b200", lambda: dao.flash_attn_4(100)),
    ],
)
def test_they_conform_at_level_full(cls, card, double, seed, monkeypatch):
    install(monkeypatch, double())
    assert failed(outcomes(cls, pretend(card), level="full", seed=seed)) == []


class WindowCountsItself(FlashAttention2):
    """Takes the library to count the current key, as xformers does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        left, right = self._window
        self._window = (left + 1 if left >= 0 else left, right)


class LseAsItComes(FlashAttention2):
    """Hands on what the library says of rows without a key."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        keys, values = (key, value) if kv_cache is None else (kv_cache.k, kv_cache.v)
        result, lse = self.call(layer, query[: plan.tokens], keys, values, plan, lse_out is not None)
        out[: plan.tokens] = result
        if lse_out is not None:
            lse_out[: plan.tokens] = lse


class SumsNothing(FlashAttention2):
    """Forgets to sum the lengths of a later batch."""

    def prepare(self, plan):
        if not getattr(self, "done", False):
            super().prepare(plan)
        self.done = True


@pytest.mark.parametrize(
    ("cls", "convention"), [(WindowCountsItself, "window"), (LseAsItComes, "lse"), (SumsNothing, "plans")]
)
def test_the_kit_catches_adapters_that_take_the_library_for_another(cls, convention, fa2):
    found = outcomes(cls, pretend("h100"), only={convention})
    assert convention in {o.convention for o in found if o.status == "failed"}
