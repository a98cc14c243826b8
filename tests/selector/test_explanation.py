"""Why this backend: every candidate, every reason, and the arithmetic of a model on a device."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headstock.core.attention import Device, one_of
from headstock.core.errors import InvalidInput
from headstock.selector import (
    PROFILES,
    ModelFigures,
    Selector,
    estimate,
    explain,
    list_backends,
    profile,
    read_policy,
)
from support.attention import CPU
from support.backends import backend, bare, layers, spec, up_to
from support.plugins import world

SMOLLM2 = layers(*[spec(num_heads=9, num_kv_heads=3)] * 30)
FIGURES = ModelFigures(
    weight_bytes=538_060_032, bytes_per_step=538_060_032, flops_per_token=2 * 134_515_008, dtype="float32"
)
"""SmolLM2-135M: 134,515,008 parameters in float32; the tied embedding is read as the output projection."""


def selector(plugins=None, **policy):
    return Selector(plugins or world(), read_policy(environ={}, **policy))


class TestCandidates:
    SMALL = backend("Small", head_sizes=up_to(32), block_sizes=one_of(64))

    def test_all_are_there_in_order_with_verdict_and_all_reasons(self):
        plugins = world({"small": self.SMALL}, {"other": backend("Other")})
        explanation = explain(selector(plugins), layers(spec()), CPU)
        (group,) = explanation.groups
        assert [(c.backend, c.rank, c.verdict) for c in group.candidates] == [
            ("small", 1, "refused"),
            ("sdpa", 2, "chosen"),
            ("reference", 3, "fits"),
            ("other", None, "fits"),
        ]
        assert group.candidates[0].reasons == ("head_size: asked 64, offered from 1 to 32",)
        assert (group.choice, group.origin) == ("sdpa", "ranked (2 of 3 on cpu)")
        assert explanation.fits

    def test_a_block_size_that_was_asked_for_is_a_reason(self):
        plugins = world({"small": self.SMALL})
        (group,) = explain(selector(plugins), layers(spec()), CPU, block_size=16).groups
        assert group.candidates[0].reasons == (
            "head_size: asked 64, offered from 1 to 32",
            "block_size: asked 16, offered 64",
        )

    def test_weights_beyond_the_memory_do_not_fit(self):
        large = ModelFigures(weight_bytes=2**50, bytes_per_step=1, flops_per_token=1, dtype="float32")
        for model, fits in ((large, False), (FIGURES, True)):
            explanation = explain(selector(), SMOLLM2, profile("a100"), model=model)
            assert explanation.error is None
            assert explanation.fits is explanation.to_dict()["estimate"]["fits"] is fits
        assert explain(selector(), SMOLLM2, CPU, model=large).fits  # a device whose memory is not known

    def test_what_the_ranking_gave_up_so_that_all_agree_is_a_reason(self):
        plugins = world({"a": backend("A", block_sizes=one_of(16))}, {"big": backend("Big", block_sizes=one_of(64))})
        explanation = explain(selector(plugins, attention_policy={"0": "big"}), layers(spec(), spec()), CPU)
        assert explanation.groups[1].choice == "sdpa"
        assert explanation.groups[1].candidates[0].reasons == ("block_size: asked 64, offered 16",)
        assert explanation.block_size == 64

    def test_layers_that_are_alike_are_one_group(self):
        specs = layers(*[spec(window=(3, 0)), spec()] * 3)
        explanation = explain(selector(attention_policy={"5": "reference"}), specs, CPU)
        assert [(len(g.layers), g.kinds[0], g.choice) for g in explanation.groups] == [
            (3, "window", "sdpa"),
            (2, "full", "sdpa"),
            (1, "full", "reference"),
        ]

    def test_both_parts_of_a_pair_are_chosen(self):
        (group,) = explain(selector(decode_attention_backend="reference"), layers(spec()), CPU).groups
        assert [(c.backend, c.verdict) for c in group.candidates] == [("sdpa", "chosen"), ("reference", "chosen")]

    def test_nothing_that_fits_is_an_answer_with_the_reasons(self):
        explanation = explain(selector(), layers(spec(latent=(512, 64), head_size=576)), CPU)
        assert not explanation.fits
        assert "no attention backend is chosen automatically" in explanation.error
        assert [c.verdict for c in explanation.groups[0].candidates] == ["refused", "refused"]
        assert explanation.groups[0].choice is None

    def test_a_wrong_policy_is_the_users_error(self):
        with pytest.raises(InvalidInput, match="matches no layer"):
            explain(selector(attention_policy={"x.*": "sdpa"}), layers(spec()), CPU)

    def test_for_a_device_that_is_not_here_no_package_need_be_installed(self):
        plugins = world({"gone": backend("Gone", missing=("gone-kernels",))})
        here, there = (explain(selector(plugins), SMOLLM2, device) for device in (CPU, profile("mi300x")))
        assert here.groups[0].choice == "sdpa"
        assert there.groups[0].choice == "gone"
        assert there.device.assumed
        assert there.device.libraries["torch"]

    @pytest.mark.parametrize("p", PROFILES, ids=lambda p: p.name)
    def test_every_profile_gets_backends_and_bounds(self, p):
        figures = replace(FIGURES, dtype="bfloat16" if "bfloat16" in p.device.peak_flops else "float32")
        explanation = explain(selector(), SMOLLM2, p.device, model=figures)
        assert explanation.fits
        assert explanation.estimate.decode_tokens_per_s == p.device.bandwidth / (538_060_032 + 1024 * 46_080)
        assert (explanation.estimate.prefill_tokens_per_s is None) == (p.device.platform == "mps")
        json.dumps(explanation.to_dict(), allow_nan=False)

    def test_observers_are_not_told_of_what_is_only_explained(self):
        plugins = world()
        told = []
        plugins.hooks.selected = lambda selection, device: told.append(selection)
        explain(selector(plugins), layers(spec()), CPU)
        assert told == []
        selector(plugins).select(layers(spec()), CPU)
        assert len(told) == 1

    def test_it_is_a_json_document(self):
        document = explain(selector(), SMOLLM2, profile("h100"), model=FIGURES).to_dict()
        again = json.loads(json.dumps(document, allow_nan=False))
        assert again == document
        assert set(again) == {"device", "groups", "block_size", "layout", "notes", "error", "estimate", "fits"}
        assert again["groups"][0]["spec"]["head_size"] == 64
        assert again["device"]["capability"] == [9, 0]


class TestEstimate:
    def test_kv_bytes_per_token_are_two_vectors_a_kv_head_and_layer(self):
        assert estimate(FIGURES, SMOLLM2, CPU, block_size=16, context=1).kv_bytes_per_token == 2 * 3 * 64 * 4 * 30

    def test_blocks_are_what_memory_leaves_after_the_weights(self):
        figures = estimate(FIGURES, SMOLLM2, profile("rtx4090"), block_size=16, context=1024)
        assert figures.budget_bytes == int(24 * 2**30 * 0.9) - 538_060_032
        assert figures.num_blocks == figures.budget_bytes // (46_080 * 16) == 30_727
        assert figures.num_tokens == 30_726 * 16  # one block is the null block

    def test_a_model_that_does_not_fit_has_no_blocks(self):
        large = ModelFigures(weight_bytes=2**50, bytes_per_step=1, flops_per_token=1, dtype="float32")
        figures = estimate(large, SMOLLM2, profile("a100"), block_size=16, context=1024)
        assert (figures.budget_bytes, figures.num_blocks, figures.num_tokens) == (0, 0, 0)

    def test_decode_is_bounded_by_reading_the_weights_and_the_context(self):
        device = Device(platform="cpu", name="17 GB/s", arch="x86_64", bandwidth=17.0e9)
        rate = estimate(FIGURES, SMOLLM2, device, block_size=16, context=0).decode_tokens_per_s
        assert rate == pytest.approx(31.6, abs=0.05)
        rate = estimate(FIGURES, SMOLLM2, device, block_size=16, context=4096).decode_tokens_per_s
        assert rate == pytest.approx(17.0e9 / (538_060_032 + 4096 * 46_080))

    def test_a_window_bounds_what_is_read(self):
        device = Device(platform="cpu", name="x", arch="x86_64", bandwidth=1e9)
        model = ModelFigures(weight_bytes=0, bytes_per_step=0, flops_per_token=0, dtype="float32")
        specs = layers(spec(window=(99, 0)), spec())  # 1,024 bytes a token and layer
        rate = estimate(model, specs, device, block_size=16, context=1000).decode_tokens_per_s
        assert rate == pytest.approx(1e9 / (100 * 1024 + 1000 * 1024))

    @pytest.mark.parametrize(
        ("fields", "pairs"),
        [
            ({}, 1 + 2 + 3 + 4 + 5),
            ({"window": (1, 0)}, 1 + 2 + 2 + 2 + 2),
            ({"causal": False, "kind": "encoder"}, 25),
        ],
    )
    def test_prefill_is_bounded_by_the_products_and_the_pairs_that_see_each_other(self, fields, pairs):
        device = Device(platform="cpu", name="x", arch="x86_64", peak_flops={"float32": 1e9})
        model = ModelFigures(weight_bytes=0, bytes_per_step=0, flops_per_token=1000, dtype="float32")
        rate = estimate(model, layers(spec(**fields)), device, block_size=16, context=5).prefill_tokens_per_s
        assert rate == pytest.approx(5 * 1e9 / (5 * 1000 + pairs * 4 * 64 * 2 * 2))

    def test_what_is_not_known_of_a_device_is_not_invented(self):
        figures = estimate(FIGURES, SMOLLM2, CPU, block_size=16, context=1024)
        assert (figures.decode_tokens_per_s, figures.prefill_tokens_per_s) == (None, None)


class TestListing:
    def test_everything_is_listed_with_version_package_verdict_and_reason(self):
        gone = backend("Gone", missing=("gone-kernels",))
        listing = list_backends(selector(world({"gone": gone}, {"cards": bare("Cards")})), CPU)
        assert [(r.name, r.distribution, r.verdict, r.reasons, r.rank) for r in listing.backends] == [
            ("gone", "this program", "unavailable", ("package gone-kernels is not installed",), 1),
            ("sdpa", "headstock", "available", (), 2),
            ("reference", "headstock", "available", (), 3),
            ("cards", "this program", "unavailable", ("does not run on cpu (x86_64)",), None),
        ]
        assert listing.backends[1].aliases == ("torch_sdpa", "torch_native")

    def test_it_is_a_json_document(self):
        document = list_backends(selector(), CPU).to_dict()
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert set(document["backends"][0]) == {
            "name", "version", "distribution", "verdict", "reasons", "rank", "aliases", "note",
        }  # fmt: skip
