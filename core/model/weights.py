"""Weights on disk: the safetensors files of a folder, and their way into the parameters of a `Decoder`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..attention import AttentionSpec
from ..errors import ModelError
from .config import ModelConfig
from .config_reader import read_json
from .decoder import Decoder
from .sources import ModelFolder

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
IGNORED = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that old checkpoints carry and nothing needs."""
BLOCK_ROWS = 128
"""Rows copied at once: the block stays in the cache while it is transposed."""


def load_decoder(
    config: ModelConfig, folder: ModelFolder, dtype: str, device: str, specs: Mapping[str, AttentionSpec]
) -> Decoder:
    """The model of `folder`, with its weights in `dtype` on `device`, and the attention that `specs` names by layer.

    Files are mapped, and each tensor is copied once, to its place. Raises `ModelError` naming file and tensor where
    weights are missing, damaged, of the wrong shape, superfluous, or stored as pickle.
    """
    files = weight_files(folder.path)
    model = Decoder(config, specs, getattr(torch, dtype), torch.device(device))
    waiting = dict(model.destinations())
    with torch.inference_mode():
        for path in files:
            for name, tensor in _tensors(path):
                if name in waiting:
                    _fill(waiting.pop(name), tensor, name, path)
                elif not name.endswith(IGNORED) and not (name == "lm_head.weight" and config.tie_word_embeddings):
                    raise ModelError(
                        f"{path}: tensor {name!r} is not part of a {config.architecture} as {config.source} states it"
                    )
    if waiting:
        names = ", ".join(list(waiting)[:3]) + (", …" if len(waiting) > 3 else "")
        raise ModelError(f"{folder.path}: {len(waiting)} tensors are missing from the safetensors files: {names}")
    return model.eval()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model in `folder`. Raises `ModelError` where there are none."""
    if (folder / INDEX).is_file():
        placed = read_json(folder / INDEX).get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
            raise ModelError(f"{folder / INDEX}: field 'weight_map' must map tensor names to file names")
        files = [folder / Path(name).name for name in sorted(set(placed.values()))]
        for path in files:
            if not path.is_file():
                raise ModelError(f"{path}: is missing, but {INDEX} names it; download it again")
        return files
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]  # others beside it are copies in other forms
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise ModelError(
            f"{folder}: has weights only as pickle ({pickles[0]}), which can run code when read and is never loaded.\n"
            "  convert them to safetensors, or use another copy of the model"
        )
    raise ModelError(f"{folder}: no *.safetensors in this folder")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with _reading(path):
        opened = safe_open(path, framework="pt")
    with opened as file:
        for name in list(file.keys()):
            with _reading(path):
                tensor = file.get_tensor(name)
            yield name, tensor


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error}); download it again") from error
    except RuntimeError as error:  # torch's word for memory that the system does not give
        raise ModelError(f"{path}: cannot be mapped into memory ({error})") from error


def _fill(destination: Tensor, source: Tensor, name: str, path: Path) -> None:
    if destination.shape != source.shape:
        raise ModelError(
            f"{path}: tensor {name!r} has shape {tuple(source.shape)}, "
            f"but the config asks for {tuple(destination.shape)}"
        )
    if not source.is_floating_point() or source.element_size() < 2:
        raise ModelError(f"{path}: tensor {name!r} is stored as {source.dtype}; quantised weights are not read")
    for start in range(0, source.shape[0], BLOCK_ROWS):
        destination[start : start + BLOCK_ROWS].copy_(source[start : start + BLOCK_ROWS])
