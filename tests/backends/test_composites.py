"""Composites of kernel libraries, through their doubles: the kit, the selector's agreement, and who is told what."""

from __future__ import annotations

import pytest

from headstock.backends.flash_attn import FlashAttention3, FlashAttention4
from headstock.backends.flashinfer import FlashInfer
from headstock.backends.flex_attention import FlexAttention
from headstock.core.attention import AttentionSpec, by_phase, one_of
from headstock.core.errors import BackendError
from headstock.plugins import load_plugins
from headstock.selector import Selector, read_policy
from support.backends import backend, layers
from support.conforming import failed, outcomes, passed
from support.doubles import dao
from support.doubles.devices import pretend
from support.doubles.flashinfer import flashinfer
from support.doubles.install import install
from support.plugins import world

pytestmark = pytest.mark.timeout(600)  # the kit is long on a loaded machine

SPEC = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=128, dtype="bfloat16")
MASKED = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=128, dtype="bfloat16", masks=frozenset({"spans"}))
H100 = pretend("h100")


@pytest.fixture
def libraries(monkeypatch):
    install(monkeypatch, dao.flash_attn_3() | dao.flash_attn_4() | flashinfer())


def choose(spec, block_size=None, **policy):
    policy = read_policy(environ={}, **policy)
    selection = Selector(load_plugins(environ={}), policy).propose(layers(spec), pretend("h100"), block_size)
    return next(iter(selection.choices.values())), selection


def test_decodes_by_flashinfer_and_prompts_by_flash_attn_3_conform(libraries):
    cls = by_phase(FlashInfer, FlashAttention3)
    found = outcomes(
        cls, H100, only={"keys", "window", "lse", "plans", "graph", "chunks", "padding", "mixed"}, made_up=30
    )
    assert failed(found) == []
    assert passed(found) >= {"keys", "window", "lse", "plans", "graph", "chunks", "padding"}


@pytest.mark.heavy
@pytest.mark.parametrize("parts", [(FlashInfer, FlashAttention3), (FlashAttention4, FlexAttention)])
def test_pairs_conform_at_level_full(libraries, parts):
    assert failed(outcomes(by_phase(*parts), H100, level="full", made_up=1000)) == []


def test_flags_make_a_pair_over_one_layout(libraries):
    choice, selection = choose(SPEC, decode_attention_backend="flashinfer", prefill_attention_backend="fa3")
    assert choice.backend == "decode=flashinfer,prefill=flash_attn_3"
    assert (choice.cls.decode_cls, choice.cls.prefill_cls) == (FlashInfer, FlashAttention3)
    assert (selection.layout.name, selection.block_size) == ("nhd", 16)


def test_a_pair_settles_on_the_block_size_of_the_choosier(libraries):
    """FlashAttention 2 has pages of 256."""
    choice, selection = choose(SPEC, decode_attention_backend="flashinfer", prefill_attention_backend="flash_attn")
    assert choice.backend == "decode=flashinfer,prefill=flash_attn"
    assert selection.block_size == 256
    assert "flash_attn takes multiples of 256" in selection.notes[0]


def test_an_explicit_block_size_is_refused_with_who_cannot(libraries):
    with pytest.raises(BackendError, match=r"flash_attn.*cannot serve(.|\n)*block_size: asked 16"):
        choose(SPEC, 16, decode_attention_backend="flashinfer", prefill_attention_backend="flash_attn")


@pytest.mark.parametrize(
    ("decode", "prefill", "outcome"), [({64}, {16}, None), ({32, 64}, {16, 32}, 32), ({16, 64}, {64, 16}, 16)]
)
def test_block_sizes_of_a_pair_are_common_ones_or_both_are_shown(decode, prefill, outcome):
    sizes = {"d": one_of(*decode), "p": one_of(*prefill)}
    plugins = world({name: backend(name.upper(), block_sizes=each) for name, each in sizes.items()})
    selector = Selector(plugins, read_policy(environ={}, decode_attention_backend="d", prefill_attention_backend="p"))
    if outcome is not None:
        assert selector.propose(layers(SPEC), H100).block_size == outcome
        return
    with pytest.raises(BackendError) as error:
        selector.propose(layers(SPEC), H100)
    assert "do not agree on a block size" in str(error.value)
    assert "d for decode of model.layers.0.self_attn.attn: 64" in str(error.value)
    assert "p for prefill of model.layers.0.self_attn.attn: 16" in str(error.value)


def test_layouts_of_a_pair_that_share_none_are_both_shown():
    plugins = world({"d": backend("D", layouts=("hnd",)), "p": backend("P", layouts=("nhd",))})
    selector = Selector(plugins, read_policy(environ={}, decode_attention_backend="d", prefill_attention_backend="p"))
    with pytest.raises(BackendError) as error:
        selector.propose(layers(SPEC), H100)
    assert "do not agree on a layout of the KV cache" in str(error.value)
    assert ": hnd" in str(error.value)
    assert ": nhd" in str(error.value)


def test_masked_rows_go_where_the_policy_says(libraries):
    policy = {"prefill": "flash_attn_3", "decode": "flashinfer", "masked": "flex_attention"}
    choice, _ = choose(MASKED, attention_policy=policy)
    assert choice.backend == "decode=flashinfer,prefill=flash_attn_3,masked=flex_attention"
    assert choice.cls.masked_cls is FlexAttention
    assert choice.cls.capabilities(H100).masks == {"spans", "tree"}
    assert choice.cls.refusals(MASKED, H100) == ()


def test_without_a_word_about_masks_a_named_backend_has_to_take_them(libraries):
    with pytest.raises(BackendError, match="masks: asked spans"):
        choose(MASKED, attention_backend="flash_attn_3")


def test_what_nobody_fast_can_mask_is_left_to_flex_attention(libraries):
    choice, _ = choose(MASKED)
    assert choice.backend == "flex_attention"
