"""What the worker remembers of each request, in arrays with one row a slot. Rows never move; a step indexes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..scheduler.output import NewRequestData

Ints = NDArray[np.int64]


class RequestStates:
    """Owner of tokens and counts of all requests the worker holds."""

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        # One column more: the last sampled token of a request of full length is kept, though never computed.
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        """Tokens known so far, a row a slot."""
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        """How many of them are known."""
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        """How many have their KV in the cache."""
        self._slots: dict[str, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, request: NewRequestData) -> int:
        """Take a slot for a request that is not held."""
        slot = self._slots[request.request_id] = self._free.pop()
        count = len(request.token_ids)
        self.token_ids[slot, :count] = request.token_ids
        self.num_tokens[slot] = count
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
        self.num_computed_tokens[slot] = request.num_computed_tokens
        return slot

    def remove(self, request_id: str) -> int | None:
        """Give the slot back; None where the request is not held."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)
        return slot

    def slot(self, request_id: str) -> int:
        return self._slots[request_id]

    def slots(self, request_ids: list[str]) -> Ints:
        """Slots of these requests, in order."""
        return np.fromiter((self._slots[i] for i in request_ids), dtype=np.int64, count=len(request_ids))

    def append(self, slots: Ints, tokens: Ints) -> None:
        """One sampled token for each of `slots`."""
        self.token_ids[slots, self.num_tokens[slots]] = tokens
        self.num_tokens[slots] += 1
