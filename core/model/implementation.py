"""Whose code runs a model: our own decoder where it knows the architecture, else transformers' modelling code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..attention import AttentionSpec
from ..errors import HeadstockError, InvalidInput, ModelError
from .architectures import ARCHITECTURES
from .config import ModelConfig
from .config_reader import read_config, read_json
from .description import Model, ModelDescription
from .pooling import MODULES
from .sources import ModelFolder
from .weights import load_decoder

IMPLEMENTATIONS = ("auto", "headstock", "transformers")
"""What `model_impl` may be."""
RUNNERS = ("auto", "generate", "pooling")
"""What a model may be loaded for: to generate text, or to give each text a vector. The names are vLLM's."""


def resolve_runner(runner: str, folder: Path) -> str:
    """What the model in `folder` is loaded for: ``"generate"`` or ``"pooling"``, as `runner` says.

    ``"auto"`` pools where the folder says how (sentence-transformers' `modules.json`), and where the architecture is
    none that generates text. Raises `InvalidInput` for unknown names.
    """
    if runner not in RUNNERS:
        raise InvalidInput("runner", f"must be one of {', '.join(RUNNERS)}, not {runner!r}")
    if runner != "auto":
        return runner
    if (folder / MODULES).is_file():
        return "pooling"
    if _own(folder):
        return "generate"
    from .borrowed import generates

    return "generate" if generates(folder) else "pooling"


def describe_model(folder: Path, model_impl: str = "auto", runner: str = "generate") -> ModelDescription:
    """The model in `folder`, read by the implementation `model_impl` for `runner`; no weights are read.

    ``"auto"`` takes our own decoder for the architectures it knows and transformers for all others; the others are
    taken as said. Raises `InvalidInput` for unknown names, and `ModelError` as `read_config` and `borrow` do.
    """
    if model_impl not in IMPLEMENTATIONS:
        raise InvalidInput("model_impl", f"must be one of {', '.join(IMPLEMENTATIONS)}, not {model_impl!r}")
    pooling = resolve_runner(runner, folder) == "pooling"
    if model_impl == "headstock":
        return read_config(folder)
    from .borrowed import borrow

    if model_impl == "transformers" or not _own(folder):
        return borrow(folder, body=pooling)
    try:
        return read_config(folder)
    except ModelError as error:
        try:
            borrow(folder, body=pooling)
        except HeadstockError:
            raise error from None
        raise ModelError(f"{error}\n  transformers' modelling code can run it: --model-impl transformers") from error


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
