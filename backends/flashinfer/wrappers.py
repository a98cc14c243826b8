"""FlashInfer's wrappers, owned: a ring for steps that run as they are, and one wrapper a graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ...core.attention import GraphKey, Limits


class Wrappers:
    """A wrapper holds what was last planned with it; so each plan in flight has its own, and so has each graph."""

    def __init__(self, workspace: Tensor, kernels: str, limits: Limits) -> None:
        """`workspace` uint8 is shared by all; `kernels` is the library's name of a family of kernels, or ``auto``."""
        library = import_module("flashinfer")
        self._decode_cls = library.BatchDecodeWithPagedKVCacheWrapper
        self._prefill_cls = library.BatchPrefillWithPagedKVCacheWrapper
        self._common = {"float_workspace_buffer": workspace, "kv_layout": "NHD", "backend": kernels}
        self._device = workspace.device
        self._limits = limits
        self._decode: deque[Any] = deque()
        self._prefill: deque[Any] = deque()
        self._captured: dict[int, Any] = {}

    def decode(self) -> Any:
        """The next wrapper for rows of one query."""
        return self._next(self._decode, self._make_decode)

    def prefill(self) -> Any:
        """The next wrapper for any rows."""
        return self._next(self._prefill, lambda: self._prefill_cls(**self._common))

    def captured(self, key: GraphKey) -> Any:
        """The wrapper of a graph of decodes; what is planned with it goes where the graph reads."""
        rows = key.padded_reqs
        if rows not in self._captured:
            self._captured[rows] = self._make_decode(
                {
                    "use_cuda_graph": True,
                    "paged_kv_indptr_buffer": self._ints(rows + 1),
                    "paged_kv_indices_buffer": self._ints(rows * self._limits.max_blocks_per_req),
                    "paged_kv_last_page_len_buffer": self._ints(rows),
                }
            )
        return self._captured[rows]

    def _next(self, ring: deque[Any], make: Callable[[], Any]) -> Any:
        if len(ring) <= self._limits.plans_in_flight:
            ring.appendleft(make())
        else:
            ring.rotate(1)
        return ring[0]

    def _make_decode(self, graph: Mapping[str, Any] | None = None) -> Any:
        # The kernels without tensor cores know few numbers of query heads a KV head; these know all.
        return self._decode_cls(use_tensor_cores=True, **self._common, **(graph or {}))

    def _ints(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self._device)
