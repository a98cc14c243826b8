"""`headstock explain`: which backend a model gets on a device, and why; from the configuration alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headstock.core.model import Decoder
from support.cli import run_cli
from support.plugins import BACKEND, write_distribution
from support.tiny import tiny_folder


@pytest.fixture
def config_only(tiny, tmp_path, monkeypatch) -> str:
    """The model's configuration, and nothing else; building a model fails."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes((Path(tiny) / "config.json").read_bytes())
    monkeypatch.setattr(Decoder, "__init__", lambda *_: pytest.fail("a model was built"))
    return str(tmp_path / "model")


def test_each_group_of_layers_gets_a_table_and_the_device_its_figures(config_only):
    result = run_cli("explain", config_only, "--device", "mi300x", environ={"COLUMNS": "200"})
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == f"{config_only} on AMD Instinct MI300X (rocm, gfx942, 192 GiB, 5300 GB/s)"
    titles = [line.strip() for line in lines if " layers (" in line]
    shape = "heads 4/2/8, bfloat16, KV bf16"
    assert titles == [
        f"2 layers (model.layers.0.self_attn.attn …): {shape}",
        f"2 layers (model.layers.2.self_attn.attn …): {shape}, window 5",
    ]
    assert len(re.findall(r"^\d +sdpa +chosen +headstock [\d.]+ +ranked \(\d of \d+ on rocm\)", result.out, re.M)) == 2
    assert "block size 16, layout nhd" in lines
    # 2 heads of 8 channels, K and V, in 4 layers of 2 bytes: 256 bytes a token.
    assert "KV 0.2 KiB a token" in result.out
    assert re.search(
        r"decode, one sequence, by bandwidth, at 1,024 tokens of context: at most [\d,]+ tokens/s", result.out
    )
    assert "is a profile: its library versions are assumed (torch " in result.err


def test_as_json_it_is_one_document_with_every_candidate(config_only):
    result = run_cli("explain", config_only, "--device", "mi300x", "--context", "100", "--json")
    assert (result.code, result.err) == (0, "")
    document = result.json
    assert (document["model"], document["fits"], document["error"]) == (config_only, True, None)
    assert document["device"]["assumed"]
    full, window = document["groups"]
    assert (full["kinds"], window["kinds"]) == (["full", "decoder"], ["window", "decoder"])
    assert (full["spec"]["window"], window["spec"]["window"]) == (None, [4, 0])
    verdicts = {c["backend"]: c["verdict"] for c in full["candidates"]}
    assert (verdicts["sdpa"], verdicts["reference"]) == ("chosen", "fits")
    estimate = document["estimate"]
    assert (estimate["kv_bytes_per_token"], estimate["context"]) == (256, 100)
    assert estimate["num_tokens"] == (estimate["num_blocks"] - 1) * 16
    # What one sequence's step reads: the weights but the embedding, 100 tokens in two layers and 5 in the others.
    read = estimate["weight_bytes"] - 267 * 32 * 2 + (2 * 100 + 2 * 5) * 64
    assert estimate["decode_tokens_per_s"] == pytest.approx(5.3e12 / read)


def test_without_a_device_it_is_about_this_machine(config_only):
    device = run_cli("explain", config_only, "--json").json["device"]
    assert not device["assumed"]
    assert device["source"].startswith("this machine")


def test_options_are_heeded(config_only):
    options = ("--attention-policy", '{"window": "reference"}', "--block-size", "32", "--dtype", "float16")
    document = run_cli("explain", config_only, *options, "--json").json
    assert [(g["choice"], g["origin"].split(" ")[0]) for g in document["groups"]][1] == ("reference", "kind")
    assert document["block_size"] == 32
    assert document["groups"][0]["spec"]["dtype"] == "float16"


class TestNothingFits:
    @pytest.fixture(autouse=True)
    def _backend_without_windows(self, site):
        write_distribution(site, "kernels", backends={"fast": "fast:Fast"}, modules={"fast": BACKEND})

    def test_the_exit_code_is_1_and_the_reasons_are_all_there(self, config_only):
        result = run_cli("explain", config_only, "--attention-backend", "fast", "--dtype", "bfloat16")
        assert (result.code, result.err) == (1, "")
        assert 'attention backend "fast", chosen by flag (fast), cannot serve' in result.out
        for reason in ("dtype: asked bfloat16, offered float32", "kv_format: asked bf16, offered fp32"):
            assert reason in result.out

    def test_as_json_too(self, config_only):
        result = run_cli("explain", config_only, "--attention-backend", "fast", "--json")
        assert result.code == 1
        document = result.json
        assert (document["fits"], document["block_size"]) == (False, None)
        assert 'attention backend "fast"' in document["error"]
        full, window = document["groups"]
        candidates = [next(c for c in group["candidates"] if c["backend"] == "fast") for group in (full, window)]
        assert [c["verdict"] for c in candidates] == ["fits", "refused"]
        assert candidates[1]["reasons"] == ["window: asked (4, 0), offered nothing"]

    def test_left_to_the_ranking_it_is_another(self, config_only):
        document = run_cli("explain", config_only, "--json").json
        assert document["fits"]
        (candidate,) = [c for c in document["groups"][0]["candidates"] if c["backend"] == "fast"]
        assert (candidate["rank"], candidate["verdict"]) == (None, "fits")


class TestOps:
    FA = ("--device", "mi300x", "--dtype", "bfloat16", "--attention-backend", "rocm_aiter_unified")

    @pytest.fixture
    def model(self, tmp_path) -> str:
        return str(tiny_folder(tmp_path, head_dim=64).path)

    def test_a_function_in_the_place_of_an_op_is_named_with_who_asked(self, model):
        result = run_cli("explain", model, *self.FA, "--aiter-op", "unified_attention=my_kernels:fast")
        assert result.code == 0
        line = "rocm_aiter_unified calls my_kernels:fast in the place of unified_attention; why: flag (--aiter-op)"
        assert line in result.out.splitlines()

    def test_one_that_nothing_calls_is_an_answer(self, model):
        result = run_cli("explain", model, *self.FA, "--aiter-op", "paged_attention=my_kernels:fast", "--json")
        assert result.code == 1
        assert "would never be called: rocm_aiter_unified calls unified_attention" in result.json["error"]

    def test_what_is_no_op_is_wrong_use(self, model):
        result = run_cli("explain", model, *self.FA, "--aiter-op", "page_attention=my_kernels:fast")
        assert (result.code, result.out) == (2, "")
        assert "'page_attention' is no op; known are" in result.err
        assert "--aiter-op takes OP=package.module:function" in result.err
