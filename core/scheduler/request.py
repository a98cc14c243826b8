"""A request while the scheduler owns it: its tokens, how far they are computed, its state."""

from __future__ import annotations

from collections.abc import Sequence

from ..kv import BlockChain
from ..params import SamplingParams
from .output import EngineRequest, TokenLogprobs
from .status import RequestStatus


class Request:
    """One live request. Made from an `EngineRequest`, changed by the scheduler only, never handed out."""

    __slots__ = (
        "_prompt_logprobs_made",
        "_prompt_logprobs_told",
        "arrival_time",
        "chains",
        "eos_token_ids",
        "first_scheduled_time",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "order",
        "params",
        "priority",
        "request_id",
        "status",
        "stop_ids",
        "token_ids",
    )

    def __init__(self, source: EngineRequest, *, chains: Sequence[BlockChain], order: int, max_model_len: int) -> None:
        self.request_id = source.request_id
        self.params: SamplingParams = source.params
        self.priority = source.priority
        self.arrival_time = source.arrival_time
        self.order = order
        """Number of its admission to the scheduler; breaks ties."""
        self.eos_token_ids = source.eos_token_ids
        self.stop_ids = frozenset(source.params.stop_ids)
        self.num_prompt_tokens = len(source.prompt_token_ids)
        self.max_tokens = source.params.max_tokens or max_model_len - self.num_prompt_tokens
        """At most so many outputs."""
        self.token_ids = list(source.prompt_token_ids)
        """Prompt and outputs."""
        self.chains = chains
        """Per KV group, keys of the full blocks; grow with the tokens."""
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        """Tokens whose KV is in its blocks once all scheduled steps have run."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache at the first admission."""
        self.num_placeholders = 0
        """Tokens that scheduled steps will sample, and that are not known yet."""
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self._prompt_logprobs_made = 0
        self._prompt_logprobs_told = 0
        self._extend_chains()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def reads_prefix_cache(self) -> bool:
        """Prompt log probabilities need every position's logits, which cached KV does not give."""
        return self.params.prompt_logprobs is None

    def become(self, status: RequestStatus) -> None:
        """Change the state; `ValueError` where there is no way."""
        if not self.status.can_become(status):
            raise ValueError(f"request {self.request_id} is {self.status.name} and cannot become {status.name}")
        self.status = status

    def append(self, token_id: int) -> None:
        """Add an output token, and the key of the block it fills."""
        self.token_ids.append(token_id)
        for chain in self.chains:
            if len(self.token_ids) % chain.block_size == 0:
                chain.extend(self.token_ids)

    def preempt(self) -> None:
        """Forget what was computed; the tokens stay."""
        self.become(RequestStatus.PREEMPTED)
        self.num_computed_tokens = self.num_placeholders = 0
        self.num_preemptions += 1
        self._prompt_logprobs_made = 0

    def untold_prompt_logprobs(self, entries: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
        """Of a step's prompt log probabilities, those that were not given out before a preemption made them again."""
        fresh = entries[max(0, self._prompt_logprobs_told - self._prompt_logprobs_made) :]
        self._prompt_logprobs_made += len(entries)
        self._prompt_logprobs_told = max(self._prompt_logprobs_told, self._prompt_logprobs_made)
        return tuple(fresh)

    def _extend_chains(self) -> None:
        for chain in self.chains:
            chain.extend(self.token_ids)
