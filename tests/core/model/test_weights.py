"""Weight files: what is missing, damaged or does not belong is named, with its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headstock.core.errors import ModelError
from headstock.core.model.weights import weight_files
from support.model import TINY, load, write_model

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path)
    return tmp_path


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_fused_matrices_hold_their_parts_in_order(folder: Path) -> None:
    tensors, layer = load_file(folder / "model.safetensors"), load(folder).layers[1]
    parts = [tensors[f"model.layers.1.self_attn.{p}_proj.weight"] for p in "qkv"]
    assert torch.equal(layer.self_attn.qkv_proj.weight, torch.cat(parts))
    parts = [tensors[f"model.layers.1.mlp.{p}_proj.weight"] for p in ("gate", "up")]
    assert torch.equal(layer.mlp.gate_up_proj.weight, torch.cat(parts))


def test_a_missing_tensor_is_named(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.pop(NORM))
    with pytest.raises(ModelError, match=rf"1 tensors are missing from the safetensors files: {NORM}"):
        load(folder)


def test_a_tensor_that_does_not_belong_is_named(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({"model.layers.7.mlp.bias": torch.zeros(3)}))
    with pytest.raises(ModelError, match=r"model.safetensors: tensor 'model.layers.7.mlp.bias' is not part of a Llama"):
        load(folder)


def test_leftovers_of_old_checkpoints_do_not_matter(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    load(folder)


def test_a_wrong_shape_is_named_with_both(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({NORM: torch.zeros(7)}))
    with pytest.raises(ModelError, match=rf"tensor '{NORM}' has shape \(7,\), but the config asks for \(16,\)"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_weights_are_not_taken_for_numbers(dtype: torch.dtype, folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({NORM: torch.zeros(16).to(dtype)}))
    with pytest.raises(ModelError, match=rf"tensor '{NORM}' is stored as {dtype}"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_that_was_cut_short_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model.safetensors: not a readable safetensors file"):
        load(folder)


def test_pickled_weights_are_never_loaded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only as pickle \(pytorch_model.bin\), which can run code"):
        load(folder)


def test_a_folder_without_weights_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*.safetensors in this folder"):
        load(folder)


def test_a_shard_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {NORM: "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model-00001-of-00002.safetensors: is missing, but .*index.json names it"):
        load(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="field 'weight_map' must map"):
        load(folder)


def test_an_index_cannot_lead_out_of_the_folder(folder: Path) -> None:
    (folder.parent / "outside.safetensors").write_bytes(b"")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(ModelError, match=rf"{folder.name}/outside.safetensors: is missing"):
        weight_files(folder)


def test_copies_in_another_form_are_left_alone(folder: Path) -> None:
    save_file({"tok_embeddings.weight": torch.zeros(2)}, folder / "consolidated.safetensors")
    assert weight_files(folder) == [folder / "model.safetensors"]


def test_16_bit_weights_are_widened(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    model = load(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.num_layers == TINY["num_hidden_layers"]
