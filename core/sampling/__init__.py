"""From logits to tokens: request parameters as arrays, the sampler, log probabilities."""

from __future__ import annotations

from .logprobs import prompt_logprobs
from .random_numbers import derive_seed
from .sampler import Sampler, SamplerOutput
from .states import SamplingStates

__all__ = ["Sampler", "SamplerOutput", "SamplingStates", "derive_seed", "prompt_logprobs"]
