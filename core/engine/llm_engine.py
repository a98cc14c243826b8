"""`LLMEngine`: prompts in, texts out, over an `EngineCore` in the same process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace

from ..errors import InvalidInput
from ..outputs import RequestOutput
from ..params import SamplingParams
from ..sampling import derive_seed
from ..scheduler.output import EngineRequest
from ..text import Tokenizer
from .core import EngineCore
from .outputs import OutputProcessor
from .prompts import Prompt


class LLMEngine:
    """Synchronous front end: `add_request`, then `step` until `has_unfinished_requests` is false."""

    def __init__(
        self,
        core: EngineCore,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        seed: int = 0,
    ) -> None:
        """`seed` is where requests without a seed of their own draw from."""
        self.core = core
        self.tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._seed = seed
        self._outputs = OutputProcessor(tokenizer)
        self._numbers = itertools.count()

    def add_request(self, prompt: Prompt, params: SamplingParams, *, priority: int = 0, stream: bool = False) -> str:
        """Check and queue one prompt; returns its request id. Raises `InvalidInput` with nothing kept of it.

        With `stream`, `step` reports on it whenever there is news, else once it is finished.
        """
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidInput("priority", f"must be an integer, not {priority!r}")
        token_ids = self._token_ids(prompt)
        params.check_vocabulary(self._vocab_size)
        number = next(self._numbers)
        group_id = str(number)
        seed = derive_seed(self._seed, number) if params.seed is None else params.seed
        ids = [group_id] if params.n == 1 else [f"{group_id}-{i}" for i in range(params.n)]
        self._outputs.add(ids, group_id, prompt, token_ids, params, stream=stream)
        try:
            for index, request_id in enumerate(ids):
                # The first completion draws as it would alone, and scores the prompt for all.
                own = replace(params, n=1, seed=seed)
                if index:
                    own = replace(own, seed=derive_seed(seed, index), prompt_logprobs=None)
                self.core.add_request(self._engine_request(request_id, token_ids, prompt, own, priority))
        except BaseException:
            self.core.abort_requests(ids)
            self._outputs.drop(ids)
            raise
        return group_id

    def _engine_request(
        self,
        request_id: str,
        token_ids: tuple[int, ...],
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
    ) -> EngineRequest:
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=params,
            eos_token_ids=self._eos_token_ids,
            priority=priority,
            arrival_time=time.monotonic(),
            cache_salt=prompt.cache_salt,
        )

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of the prompt, all within the model's vocabulary: a tokenizer may know more tokens than that."""
        given = prompt.token_ids
        token_ids = tuple(self.tokenizer.encode(prompt.text or "")) if given is None else given
        for token in token_ids:
            if not 0 <= token < self._vocab_size:
                field = "prompt" if given is None else "prompt_token_ids"
                raise InvalidInput(field, f"token id {token} is not in the vocabulary (0 to {self._vocab_size - 1})")
        return token_ids

    def step(self) -> list[RequestOutput]:
        """Compute one step; the requests that have news, each with everything so far."""
        outputs, stopped = self._outputs.process(self.core.step())
        if stopped:
            self.core.abort_requests(stopped)
        return outputs

    def abort_request(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests; their last outputs. Unknown or ended ids are ignored."""
        ids = self._outputs.requests_of(request_ids)
        outputs, _ = self._outputs.process(self.core.abort_requests(ids))
        self._outputs.drop(ids)  # an interrupt may have kept the news of their end from coming here
        return outputs

    def has_unfinished_requests(self) -> bool:
        return self.core.has_unfinished_requests()
