"""One vector from the states of a text's tokens, in the way that the model's files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headstock.core.errors import ModelError
from headstock.core.model import Pooling, read_pooling
from support.architectures import say_pooling

HIDDEN = torch.tensor([[1.0, 8.0], [3.0, 4.0], [5.0, -6.0], [0.0, 3.0], [4.0, 4.0]])
STARTS = torch.tensor([0, 3, 5])
"""Texts of three and of two tokens."""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cls", [[1.0, 8.0], [0.0, 3.0]]),
        ("last", [[5.0, -6.0], [4.0, 4.0]]),
        ("mean", [[3.0, 2.0], [2.0, 3.5]]),
        ("max", [[5.0, 8.0], [4.0, 4.0]]),
    ],
)
def test_each_text_is_pooled_by_itself(kind: str, expected: list[list[float]]) -> None:
    assert Pooling(kind=kind, normalize=False)(HIDDEN, STARTS).tolist() == expected
    lengths = Pooling(kind=kind, normalize=True)(HIDDEN, STARTS).norm(dim=-1)
    assert torch.allclose(lengths, torch.ones(2))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_files_of_sentence_transformers_are_read(
    config: dict[str, bool], kind: str, normalize: bool, tmp_path: Path
) -> None:
    say_pooling(tmp_path, normalize=normalize, max_tokens=77, **config)
    assert read_pooling(tmp_path, causal=False) == Pooling(kind=kind, normalize=normalize, max_tokens=77)


def test_without_them_encoders_take_the_first_token_and_decoders_the_last(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, causal=False) == Pooling(kind="cls", normalize=True)
    assert read_pooling(tmp_path, causal=True) == Pooling(kind="last", normalize=True)


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_xlm-roberta_config.json"])
@pytest.mark.parametrize("causal", [True, False])
def test_what_texts_a_model_takes_is_read_without_the_list_of_modules(name: str, causal: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps({"max_seq_length": 77, "do_lower_case": True}))
    assert read_pooling(tmp_path, causal=causal) == Pooling(
        kind="last" if causal else "cls", normalize=True, max_tokens=77, lower_case=True
    )
    (tmp_path / name).write_text(json.dumps({"max_seq_length": None, "do_lower_case": False}))
    assert read_pooling(tmp_path, causal=causal) == Pooling(kind="last" if causal else "cls", normalize=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_seq_length", 0), ("max_seq_length", "512"), ("do_lower_case", 1), ("do_lower_case", "no")],
)
def test_what_is_no_length_and_no_switch_is_refused(field: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({field: value}))
    with pytest.raises(ModelError, match=rf"sentence_bert_config.json: field '{field}' must be .*, not {value!r}"):
        read_pooling(tmp_path, causal=False)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pooling by cls and mean"),
        ({"pooling_mode_weightedmean_tokens": True}, "pooling by pooling_mode_weightedmean_tokens"),
        ({}, "pooling by nothing; supported is one of cls, last, max, mean"),
        ({"pooling_mode": ["mean"]}, "pooling by"),
    ],
)
def test_another_pooling_is_refused_by_name(config: dict[str, object], reason: str, tmp_path: Path) -> None:
    say_pooling(tmp_path, **config)
    with pytest.raises(ModelError, match=rf"1_Pooling/config.json: asks for {reason}"):
        read_pooling(tmp_path, causal=False)


def test_other_modules_are_refused_by_name(tmp_path: Path) -> None:
    say_pooling(tmp_path, pooling_mode="mean")
    path = tmp_path / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([*modules, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]))
    with pytest.raises(ModelError, match="module 2 is a Dense, which is not supported"):
        read_pooling(tmp_path, causal=False)
    path.write_text(json.dumps(modules[:1]))
    with pytest.raises(ModelError, match="names no Pooling"):
        read_pooling(tmp_path, causal=False)
    path.write_text(json.dumps({"modules": []}))
    with pytest.raises(ModelError, match="must be a list of objects"):
        read_pooling(tmp_path, causal=False)
