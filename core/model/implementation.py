"""Whose code runs a model: our own decoder where it knows the architecture, else transformers' modelling code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..attention import AttentionSpec
from ..errors import InvalidInput
from .architectures import ARCHITECTURES
from .config import ModelConfig
from .config_reader import read_config, read_json
from .description import Model, ModelDescription
from .sources import ModelFolder
from .weights import load_decoder

IMPLEMENTATIONS = ("auto", "headstock", "transformers")
"""What `model_impl` may be."""


def describe_model(folder: Path, model_impl: str = "auto") -> ModelDescription:
    """The model in `folder`, read by the implementation `model_impl`; no weights are read.

    ``"auto"`` takes our own decoder for the architectures it knows and transformers for all others; the others are
    taken as said. Raises `InvalidInput` for unknown names, and `ModelError` as `read_config` and `borrow` do.
    """
    if model_impl not in IMPLEMENTATIONS:
        raise InvalidInput("model_impl", f"must be one of {', '.join(IMPLEMENTATIONS)}, not {model_impl!r}")
    if model_impl == "headstock" or (model_impl == "auto" and _own(folder)):
        return read_config(folder)
    from .borrowed import borrow

    return borrow(folder)


def _own(folder: Path) -> bool:
    names = read_json(folder / "config.json").get("architectures")
    return not isinstance(names, list) or not names or any(name in ARCHITECTURES for name in names if name)


def load_model(
    description: ModelDescription, folder: ModelFolder, dtype: str, device: str, specs: Mapping[str, AttentionSpec]
) -> Model:
    """The model of `folder`, with its weights in `dtype` on `device`, and the attention that `specs` names by layer.

    Raises `ModelError` where weights are missing, damaged, of the wrong shape, or stored as pickle.
    """
    if isinstance(description, ModelConfig):
        return load_decoder(description, folder, dtype, device, specs)
    from .borrowed import BorrowedConfig, load_borrowed

    assert isinstance(description, BorrowedConfig)
    return load_borrowed(description, folder, dtype, device, specs)
