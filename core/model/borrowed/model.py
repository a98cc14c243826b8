"""`BorrowedModel`: transformers' module in the shape the runner asks for, hidden states first and logits apart."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from .alibi import masks_for
from .trace import accepts


class BorrowedModel(nn.Module):
    """A model of transformers' whose attention is the engine's: a causal language model, or with `body` no more than
    what computes hidden states."""

    def __init__(self, model: Any, *, body: bool = False, first_position: int = 0) -> None:
        super().__init__()
        self._first_position = first_position
        self._body = [model if body else model.base_model]
        for config in (model.config, model.config.get_text_config()):
            config.use_cache = False
            config.output_router_logits = False  # for training
        self.model = model
        self._positions = accepts(model.base_model, "position_ids")
        self._masks = masks_for(model)
        # In lists, as their parameters are those of `model` already.
        self._head = [] if body else [_head_of(model)]

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Final hidden states (T, hidden) of tokens `input_ids` int64 (T,), at `positions` int64 (T,) of their texts.

        Runs inside `forward_context`, which says how the tokens belong together and who attends.
        """
        where = {"position_ids": (positions + self._first_position)[None]} if self._positions else {}
        return self._body[0](input_ids[None], **where, **self._masks)[0][0]

    def whole(self, input_ids: Tensor) -> Tensor:
        """What the model itself makes of one text (T,) in one go: logits, or a body's final hidden states."""
        out = self.model(input_ids[None], **self._masks)
        return out.logits[0] if self._head else out[0][0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits (rows, vocabulary) of rows of `forward`'s result: pass only those that are sampled from."""
        return self._head[0](inputs_embeds=hidden[None]).logits[0]


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
