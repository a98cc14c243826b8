"""`Embedder`: hidden states of whole texts, in one ragged row without padding or cache, pooled to one vector each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from ..attention import Attention, AttentionBatch, AttentionSelection, Device, Limits, RowCounts, forward_context
from ..model import Model, Pooling
from .attention import AttentionGroups


class Embedder:
    """Owner of a model's attention over texts that are computed whole."""

    def __init__(
        self, model: Model, selection: AttentionSelection, pooling: Pooling, device: Device, limits: Limits
    ) -> None:
        self._model = model
        self._pooling = pooling
        self._device = device.torch_device
        layers: Mapping[str, Attention] = {m.name: m for m in model.modules() if isinstance(m, Attention)}
        self._attention = AttentionGroups(selection, device, limits)
        self._attention.bind(layers, {}, ())

    @torch.inference_mode()
    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """float32 (texts, hidden), on the host, for the token ids of texts that fit into one step together."""
        lengths = [len(text) for text in texts]
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int64)
        ids = torch.tensor(list(chain.from_iterable(texts)), device=self._device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self._device)
        context = self._attention.plan((self._batch(lengths, starts.int()),))
        self._attention.prepare(context)
        with forward_context(context):
            hidden = self._model(ids, positions)
        return self._pooling(hidden, starts.to(hidden.device)).cpu()

    def _batch(self, lengths: Sequence[int], starts: Tensor) -> AttentionBatch:
        """Texts without context: all are prefills, and a row's keys are its own tokens."""
        seq_lens, there = torch.tensor(lengths, dtype=torch.int32), starts.to(self._device)
        return AttentionBatch(
            num_reqs=len(lengths),
            num_tokens=sum(lengths),
            counts=RowCounts(prefills=len(lengths), prefill_tokens=sum(lengths)),
            query_start_loc=there,
            query_start_loc_cpu=starts,
            max_query_len=max(lengths),
            seq_lens=seq_lens.to(self._device),
            seq_lens_cpu=seq_lens,
            seq_lens_cpu_upper_bound=seq_lens,
            max_seq_len=max(lengths),
            key_start_loc=there,
            max_key_len=max(lengths),
        )
