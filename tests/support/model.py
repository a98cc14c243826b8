"""Models for tests: small random ones in Hugging Face's form, and running a `Decoder` without engine or cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor

from headstock.core.attention import AttentionBackend, BoundLayer, Capabilities, Device, ForwardContext, LayerParams
from headstock.core.attention import forward_context as in_context
from headstock.core.attention.reference import attend_sequence
from headstock.core.model import Decoder, ModelFolder, load_model, read_config
from support.attention import make


class WholeTexts(AttentionBackend[Sequence[int]]):
    """Attention over whole texts that stand one after the other; the plan is their lengths. Needs no cache."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return Capabilities()

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None) -> None:
        for start, end in pairwise(accumulate(plan, initial=0)):
            out[start:end] = attend_sequence(query[start:end], key[start:end], value[start:end], layer.spec)[0]


def load(folder: Path, dtype: str = "float32") -> Decoder:
    """The model in `folder`, on the CPU."""
    config = read_config(folder)
    model = ModelFolder(name=str(folder), path=folder, origin="test")
    return load_model(config, model, dtype, "cpu", config.attention_specs(dtype))


@contextmanager
def attention_over(model: Decoder, lengths: Sequence[int]) -> Iterator[None]:
    """A forward context in which texts of `lengths` tokens stand one after the other."""
    layers = {
        name: BoundLayer(
            params=LayerParams(name=name, spec=spec), backend=make(WholeTexts, spec), kv_cache=None, group=0
        )
        for name, spec in model.config.attention_specs("float32").items()
    }
    slots = torch.full((sum(lengths),), -1)
    with (
        torch.inference_mode(),
        in_context(ForwardContext(layers=layers, plans=(tuple(lengths),), slot_mappings=(slots,))),
    ):
        yield


def logits_of(model: Decoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits (tokens of all texts, vocabulary) of texts that are computed in one flat row."""
    ids = torch.tensor([token for text in texts for token in text])
    positions = torch.cat([torch.arange(len(text)) for text in texts])
    with attention_over(model, [len(text) for text in texts]):
        return model.compute_logits(model(ids, positions))
