"""`InputProcessor`: from what a caller asks to what an engine computes. The way back is in `outputs.py`."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace

from ..errors import InvalidInput, check_unicode
from ..params import SamplingParams
from ..sampling import derive_seed
from ..scheduler.config import Policy
from ..scheduler.output import EngineRequest
from ..text import Tokenizer
from .prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """One prompt, checked, with its completions as requests of their own."""

    request_id: str
    """What the caller knows it by."""
    prompt: Prompt
    token_ids: tuple[int, ...]
    """The prompt's, all within the model's vocabulary."""
    params: SamplingParams
    """As the caller gave them, with `n`."""
    requests: tuple[EngineRequest, ...]
    """One a completion, in order. Their ids are unique in this process, whatever ids callers choose."""

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """Ids of `requests`."""
        return tuple(request.request_id for request in self.requests)


class InputProcessor:
    """Tokenises, checks against the vocabulary, fans `n` completions out, and gives each its seed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        seed: int = 0,
        policy: Policy = "fcfs",
    ) -> None:
        """`seed` is where requests without a seed of their own draw from; `policy` is the scheduler's."""
        self.tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._seed = seed
        self._policy = policy
        self._numbers = itertools.count()

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        request_id: str | None = None,
        token_ids: tuple[int, ...] | None = None,
        arrival_time: float | None = None,
    ) -> PreparedRequest:
        """Raises `InvalidInput` naming the field.

        `request_id` None is a number of ours. `token_ids` are those of `tokenize`, where the caller has them already;
        `arrival_time` is now by default.
        """
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidInput("priority", f"must be an integer, not {priority!r}")
        if priority and self._policy != "priority":
            raise InvalidInput("priority", f"needs scheduling_policy=priority; here it is {self._policy}")
        if not isinstance(params, SamplingParams):
            raise InvalidInput("sampling_params", f"must be SamplingParams, not {type(params).__name__}")
        if request_id is not None and not isinstance(request_id, str):
            raise InvalidInput("request_id", f"must be text, not {type(request_id).__name__}")
        if prompt.cache_salt == "":
            raise InvalidInput("cache_salt", "must not be empty; leave it out to share cached prefixes")
        words = {"request_id": request_id, "cache_salt": prompt.cache_salt, "session": prompt.session}
        for name, word in words.items():
            check_unicode(name, word or "")
        token_ids = self.tokenize(prompt) if token_ids is None else token_ids
        params.check_vocabulary(self._vocab_size)
        self._check_ends(params)
        number = next(self._numbers)
        engine_id = str(number) if request_id is None else f"{request_id}.{number}"
        arrival = time.monotonic() if arrival_time is None else arrival_time
        requests = tuple(
            EngineRequest(
                request_id=engine_id if params.n == 1 else f"{engine_id}-{index}",
                prompt_token_ids=token_ids,
                params=own,
                eos_token_ids=self._eos_token_ids,
                priority=priority,
                arrival_time=arrival,
                cache_salt=prompt.cache_salt,
                session=prompt.session,
            )
            for index, own in enumerate(self._fan_out(params, number))
        )
        return PreparedRequest(
            request_id=engine_id if request_id is None else request_id,
            prompt=prompt,
            token_ids=token_ids,
            params=params,
            requests=requests,
        )

    def _check_ends(self, params: SamplingParams) -> None:
        ends, allowed = {*self._eos_token_ids, *params.stop_ids}, params.allowed_token_ids
        if params.min_tokens and (len(ends) == self._vocab_size if allowed is None else ends.issuperset(allowed)):
            problem = f"every token that may be sampled ends the answer, so it cannot have {params.min_tokens} before"
            raise InvalidInput("min_tokens", problem)

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of the prompt, all within the model's vocabulary: a tokenizer may know more tokens than that."""
        given = prompt.token_ids
        token_ids = tuple(self.tokenizer.encode(prompt.text or "")) if given is None else given
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._vocab_size):
            wrong = next(token for token in token_ids if not 0 <= token < self._vocab_size)
            field = "prompt" if given is None else "prompt_token_ids"
            raise InvalidInput(field, f"token id {wrong} is not in the vocabulary (0 to {self._vocab_size - 1})")
        return token_ids

    def _fan_out(self, params: SamplingParams, number: int) -> list[SamplingParams]:
        """The first completion draws as it would alone, and scores the prompt for all."""
        seed = derive_seed(self._seed, number) if params.seed is None else params.seed
        first = replace(params, n=1, seed=seed)
        others = [replace(first, seed=derive_seed(seed, i), prompt_logprobs=None) for i in range(1, params.n)]
        return [first, *others]
