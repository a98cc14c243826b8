"""How a request wants its tokens chosen: `SamplingParams`, checked when made.

Names and meanings are vLLM's. Checks that need the vocabulary are in `SamplingParams.check_vocabulary`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidInput, check_unicode

MAX_TOKENS_LIMIT = 2**31 - 1
MAX_N = 1024
INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
"""As JSON writes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. Raises `InvalidInput` naming the field."""

    n: int = 1
    """Completions per prompt, each sampled with its own stream of random numbers."""
    temperature: float = 1.0
    """0 is greedy. Applied after penalties."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches `top_p`, in (0, 1]. Holtzman et al. 2019."""
    top_k: int = 0
    """Keep the `top_k` likeliest tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Drop tokens less likely than `min_p` times the likeliest, in [0, 1]. Nguyen et al. 2024."""
    presence_penalty: float = 0.0
    """Subtracted once from each token that occurs in the output, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output, in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; in [1e-6, 1e6].
    Keskar et al. 2019."""
    seed: int | None = None
    """With a seed the same request gives the same tokens, whatever else runs beside it."""
    stop: str | Iterable[str] | None = None
    """Strings that end the answer; kept as a tuple."""
    stop_token_ids: Iterable[int] | None = None
    """Token ids that end the answer; kept as a tuple."""
    include_stop_str_in_output: bool = False
    """Whether the text keeps the stop string, or the text of the stop token, that ended it."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    max_tokens: int | None = 16
    """At most so many new tokens, at least 1; None means up to the model's limit."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens cannot be sampled, and stop strings are not searched, before so many tokens."""
    logprobs: int | None = None
    """For each new token, its log probability and that of the `logprobs` likeliest ones; -1 is the whole vocabulary.
    From the raw logits, before penalties and temperature."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens; the first has none."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids, clamped to [-100, 100]."""
    allowed_token_ids: Iterable[int] | None = None
    """Only these token ids can be sampled; kept as a tuple."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    detokenize: bool = True
    """False leaves `text` empty, and stop strings are refused."""

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "allowed_token_ids"):
            object.__setattr__(self, name, _tuple(name, getattr(self, name), str if name == "stop" else int))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        self._check_counts()
        self._check_numbers()
        self._check_stops()

    def _check_counts(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _integer("top_k", self.top_k, 0, MAX_TOKENS_LIMIT)
        _integer("min_tokens", self.min_tokens, 0, MAX_TOKENS_LIMIT)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT)
            if self.min_tokens > self.max_tokens:
                raise InvalidInput("min_tokens", f"{self.min_tokens} is more than max_tokens={self.max_tokens}")
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**63 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                _integer(name, value, -1, MAX_TOKENS_LIMIT)

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0, math.inf)
        _number("top_p", self.top_p, 0, 1, open_low=True)
        _number("min_p", self.min_p, 0, 1)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        # Beyond these a logit could overflow float32.
        _number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(name, f"must be True or False, not {getattr(self, name)!r}")

    def _check_stops(self) -> None:
        for text in self.stops:
            check_unicode("stop", text)
        if any(not text for text in self.stops):
            raise InvalidInput("stop", "an empty string would end every answer at once")
        if self.stops and not self.detokenize:
            raise InvalidInput("stop", "stop strings need detokenize=True")
        if self.allowed_token_ids is not None and not tuple(self.allowed_token_ids):
            raise InvalidInput("allowed_token_ids", "is empty, so no token could be sampled")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, as a tuple."""
        return tuple(self.stop or ())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The stop token ids, as a tuple."""
        return tuple(self.stop_token_ids or ())

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < 1e-5

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidInput` where a token id or a count lies outside a vocabulary of `vocab_size`."""
        ids: dict[str, Iterable[int]] = {
            "stop_token_ids": self.stop_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": self.logit_bias or (),
        }
        for name, values in ids.items():
            for token in values:
                if not 0 <= token < vocab_size:
                    raise InvalidInput(name, f"token id {token} is not in the vocabulary (0 to {vocab_size - 1})")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and value > vocab_size:
                raise InvalidInput(name, f"{value} is more than the vocabulary's {vocab_size} tokens")


def _tuple(name: str, value: Any, kind: type) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = (value,) if kind is str else None
    try:
        items = tuple(value)
    except TypeError:
        raise InvalidInput(name, f"must be a list of {kind.__name__}") from None
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise InvalidInput(name, f"must hold {kind.__name__} values, not {item!r}")
    return items


def _bias(value: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidInput("logit_bias", "must map token ids to numbers")
    bias: dict[int, float] = {}
    for key, amount in value.items():
        # JSON has text for keys, and two ways to write a number would be two keys.
        digits = isinstance(key, str) and INTEGER.fullmatch(key) is not None
        if isinstance(key, bool) or not (isinstance(key, int) or digits):
            raise InvalidInput("logit_bias", f"token id {key!r} is not an integer")
        token = int(key)
        _number("logit_bias", amount, -math.inf, math.inf)
        bias[token] = min(100.0, max(-100.0, float(amount)))
    return bias


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(name, f"must be an integer, not {value!r}")
    if not low <= value <= high:
        raise InvalidInput(name, f"must be from {low} to {high}, not {value}")


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(name, f"must be a number, not {value!r}")
    if isinstance(value, int) and abs(value) > 2**63:
        raise InvalidInput(name, "must be a number that a float holds")
    if not math.isfinite(value):
        raise InvalidInput(name, f"must be finite, not {value}")
    if not low <= value <= high or (open_low and value == low):
        least = f"{'above' if open_low else 'at least'} {low}"
        raise InvalidInput(name, f"must be {least}{'' if high == math.inf else f' and at most {high}'}, not {value}")
