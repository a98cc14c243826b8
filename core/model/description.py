"""`ModelDescription`: what the engine asks of a model before its weights are loaded, whoever's code will run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from ..attention import AttentionSpec


class Described(Protocol):
    """Anything that says what a model is and whose code runs it."""

    @property
    def architecture(self) -> str: ...

    @property
    def implementation(self) -> str: ...


class ModelDescription(Protocol):
    """Implemented by `ModelConfig` (our own decoder) and `BorrowedConfig` (transformers' modelling code)."""

    @property
    def architecture(self) -> str:
        """Class name in Hugging Face's terms."""
        ...

    @property
    def implementation(self) -> str:
        """Whose code runs it, with a version where it is not ours: ``"headstock"``, ``"transformers 5.24.0"``."""
        ...

    @property
    def source(self) -> str:
        """Path of the file it was read from, for messages."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position(self) -> int:
        """Longest text, in tokens, that the model is made for."""
        ...

    @property
    def dtype(self) -> str:
        """Of the stored weights: a key of `DTYPE_FORMATS`."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    def attention_specs(self, dtype: str) -> dict[str, AttentionSpec]:
        """Layer name → the attention computed there in `dtype`, in the order of the layers."""
        ...

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights held in `dtype`."""
        ...

    def lookup_bytes(self, dtype: str) -> int:
        """Bytes of those weights that one token does not use: most of an embedding, and experts it is not sent to."""
        ...

    def flops_per_token(self) -> int:
        """Of the matrix products, attention apart: two for each weight they use."""
        ...


def summary(model: Described) -> str:
    """A line that says what the model is and whose code runs it."""
    code = "Headstock's own definition" if model.implementation == "headstock" else model.implementation
    return f"model: {model.architecture}, run by {code}"


class Model(Protocol):
    """A loaded model, whose attention `forward_context` serves."""

    def __call__(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states (T, hidden) for int64 ids and positions (T,), of all texts of a step in one row."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """All of its modules; one `Attention` a layer is among them."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits (rows, vocab) for hidden states (rows, hidden)."""
        ...
