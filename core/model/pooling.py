"""Pooling: from the hidden states of a text's tokens to one vector, as the model's own files say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from .config_reader import read_json, read_json_value

POOLINGS = ("cls", "last", "max", "mean")
"""The first token's state; the last one's; the largest value of each channel; the average of all tokens."""
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Switches of sentence-transformers' pooling config → what they turn on; any other that is on is not supported."""
MODULES = "modules.json"
"""Where sentence-transformers lists what a model is made of, one thing after the other."""
TEXTS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Where it says what texts a model takes; files of later versions all have the first name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How a text's vector is made."""

    kind: str
    """One of `POOLINGS`."""
    normalize: bool
    """The vector is scaled to length 1."""
    max_tokens: int | None = None
    """Longest text that the model is meant for, where the files say so."""
    lower_case: bool = False
    """Texts are lower-cased before they are tokenised."""

    def __call__(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """float32 (texts, hidden) from hidden states (T, hidden) of texts that begin at int64 `starts` (texts + 1,)."""
        states, first, end = hidden.float(), starts[:-1], starts[1:]
        if self.kind == "cls":
            pooled = states[first]
        elif self.kind == "last":
            pooled = states[end - 1]
        else:
            pooled = torch.segment_reduce(states, self.kind, lengths=end - first, axis=0)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def read_pooling(folder: Path, *, causal: bool) -> Pooling:
    """What sentence-transformers' files in `folder` say; without `MODULES` the last token of a causal model and the
    first of another, at length 1, as vLLM does.

    Raises `ModelError` naming file and field where they ask for something else than `POOLINGS` and a norm.
    """
    texts = next((path for name in TEXTS if (path := folder / name).is_file()), None)
    limits = {} if texts is None else _texts(read_json(texts), str(texts))
    if not (folder / MODULES).is_file():
        return Pooling(kind="last" if causal else "cls", normalize=True, **limits)
    kind, normalize = "", False
    modules = read_json_value(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{folder / MODULES}: must be a list of objects")
    for index, module in enumerate(modules):
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling" and not kind:
            path = folder / Path(str(module.get("path", ""))).name / "config.json"
            kind = _kind(read_json(path), str(path))
        elif name == "Normalize":
            normalize = True
        elif not (name == "Transformer" and index == 0):
            raise ModelError(
                f"{folder / MODULES}: module {index} is a {name or 'module without a type'}, which is not supported; "
                "supported are a Transformer, a Pooling and a Normalize, in this order"
            )
    if not kind:
        raise ModelError(f"{folder / MODULES}: names no Pooling, so it is not said how a text becomes one vector")
    return Pooling(kind=kind, normalize=normalize, **limits)


def _kind(config: Mapping[str, Any], source: str) -> str:
    if (stated := config.get("pooling_mode")) is not None:
        named = {"lasttoken": "last"}.get(str(stated), str(stated))
        chosen = [named] if isinstance(stated, str) else [str(stated)]
    else:
        chosen = [FLAGS.get(name, name) for name, on in config.items() if name.startswith("pooling_mode") and on]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ModelError(
            f"{source}: asks for pooling by {' and '.join(chosen) or 'nothing'}; "
            f"supported is one of {', '.join(POOLINGS)}"
        )
    return chosen[0]


def _texts(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Fields of `Pooling` that one of `TEXTS` says."""
    longest, lower = config.get("max_seq_length"), config.get("do_lower_case")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 1):
        raise ModelError(f"{source}: field 'max_seq_length' must be a whole number of at least 1, not {longest!r}")
    if not isinstance(lower, bool | None):
        raise ModelError(f"{source}: field 'do_lower_case' must be true or false, not {lower!r}")
    return {"max_tokens": longest, "lower_case": bool(lower)}
