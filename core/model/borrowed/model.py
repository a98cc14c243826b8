"""`BorrowedModel`: transformers' module in the shape the runner asks for, hidden states first and logits apart."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from .alibi import masks_for
from .trace import accepts


class BorrowedModel(nn.Module):
    """A causal language model of transformers' whose attention is the engine's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        if getattr(model.config, "output_router_logits", False):
            model.config.output_router_logits = False  # for training
        self.model = model
        self._positions = accepts(model.base_model, "position_ids")
        self._masks = masks_for(model)
        self._head = [_head_of(model)]  # in a list, as its parameters are those of `model` already

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Final hidden states (T, hidden) of tokens `input_ids` int64 (T,), at `positions` int64 (T,) of their texts.

        Runs inside `forward_context`, which says how the tokens belong together and who attends.
        """
        return self.model.base_model(input_ids[None], use_cache=False, **self._inputs(positions))[0][0]

    def whole(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Logits (T, vocabulary) as the model itself computes them in one go: to hold the two halves against."""
        return self.model(input_ids[None], use_cache=False, **self._inputs(positions)).logits[0]

    def _inputs(self, positions: Tensor) -> dict[str, Tensor]:
        return {"position_ids": positions[None], **self._masks} if self._positions else self._masks

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits (rows, vocabulary) of rows of `forward`'s result: pass only those that are sampled from."""
        return self._head[0](inputs_embeds=hidden[None], use_cache=False).logits[0]


class _States(tuple[Tensor]):
    """A body's output that holds final hidden states and nothing else: whatever else is asked for is None."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


class _Given(nn.Module):
    """In the place of a model's body: its final hidden states are what it is given as embeddings."""

    @property
    def decoder(self) -> _Given:
        """OPT's head calls the body's decoder."""
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _States:
        return _States((inputs_embeds,))


def _head_of(model: Any) -> Any:
    """`model` without its body: scales, caps and projects what it is given, as its own code does."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Given()}
    return head
