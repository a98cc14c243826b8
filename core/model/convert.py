"""Turning a GGUF file into a Hugging Face folder of safetensors, so that it is dequantised only once."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelError
from .config_reader import parse_config
from .gguf_file import GGUFFile, StoredTensor, shards
from .gguf_tokenizer import write_tokenizer
from .progress import Progress

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 2 * 1024**3
"""A shard is held in memory while it is written."""


def convert_gguf(source: Path, folder: Path, progress: Progress) -> None:
    """Write the model of the GGUF file `source` into the existing `folder`: config, tokenizer and weights.

    Quantised tensors become float32, and 16-bit ones stay as they are. Raises `ModelError` where the file is damaged or
    not supported, before anything large is written, and `OSError` where `folder` cannot be written.
    """
    file = GGUFFile(source)
    config = file.config()
    parse_config(config, str(source))
    write_tokenizer(file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(file, folder, progress)


def _write_weights(file: GGUFFile, folder: Path, progress: Progress) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    parts = shards(list(file.tensors()), SHARD_BYTES)
    total = sum(tensor.nbytes for part in parts for tensor in part)
    names = ["model.safetensors"]
    if len(parts) > 1:
        names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    done, where = 0, {}
    for part, name in zip(parts, names, strict=True):
        loaded = {}
        for tensor in part:
            loaded[tensor.name] = _load(file, tensor)
            where[tensor.name] = name
            done += tensor.nbytes
            progress(f"converting {file.path.name}", min(done, total - 1), total)
        try:
            save_file(loaded, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(folder / name)) from error
        shutil.copymode(folder / "config.json", folder / name)  # the library writes files that only their owner reads
    if len(parts) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    progress(f"converting {file.path.name}", total, total)


def _load(file: GGUFFile, tensor: StoredTensor) -> torch.Tensor:
    try:
        return tensor.load()
    except (ValueError, NotImplementedError) as error:
        kind = tensor.raw.tensor_type.name
        raise ModelError(f"{file.path}: tensor {tensor.raw.name!r} of type {kind} cannot be read: {error}") from error
