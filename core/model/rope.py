"""Rotary position embedding: its parameters, and the frequencies they give. Su et al. 2021, arXiv 2104.09864."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions become angles."""

    theta: float = 10000.0
    """Base of the geometric row of wavelengths."""
    kind: str = "default"
    """Name in `ROPE_KINDS`."""
    factor: float = 1.0
    """How much longer than in training texts may be."""
    original_max_position: int = 0
    """Tokens of the longest text in training (llama3, yarn)."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than the training length over this are stretched by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than the training length over this are left alone."""
    beta_fast: float = 32.0
    """yarn: channels that turn more often than this within the training length are left alone."""
    beta_slow: float = 1.0
    """yarn: channels that turn less often than this are stretched by `factor`."""
    truncate: bool = True
    """yarn: round the bounds of the ramp to whole channels."""
    attention_factor: float = 1.0
    """Multiplies cosine and sine."""
    divisors: tuple[float, ...] = ()
    """divisors: one a frequency, as GGUF files carry them."""


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """The `attention_factor` that yarn implies where the config states none. Peng et al. 2023, arXiv 2309.00071."""

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def inverse_frequencies(rope: RopeConfig, head_size: int) -> Tensor:
    """Radians a position turns each pair of channels: float32 (head_size / 2,) on the CPU, fastest first."""
    import torch

    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device="cpu") / head_size
    return ROPE_KINDS[rope.kind](rope, rope.theta**exponents)


def _plain(rope: RopeConfig, wavelengths: Tensor) -> Tensor:
    return 1.0 / wavelengths


def _linear(rope: RopeConfig, wavelengths: Tensor) -> Tensor:
    return 1.0 / wavelengths / rope.factor


def _divided(rope: RopeConfig, wavelengths: Tensor) -> Tensor:
    return 1.0 / (wavelengths * wavelengths.new_tensor(rope.divisors))


def _llama3(rope: RopeConfig, wavelengths: Tensor) -> Tensor:
    import torch

    plain = 1.0 / wavelengths
    turns = rope.original_max_position / (2 * math.pi / plain)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * plain / rope.factor + blend * plain
    return torch.where(
        turns < rope.low_freq_factor, plain / rope.factor, torch.where(turns > rope.high_freq_factor, plain, blended)
    )


def _yarn(rope: RopeConfig, wavelengths: Tensor) -> Tensor:
    import torch

    pairs = wavelengths.numel()

    def channel(turns: float) -> float:
        """The channel that turns so often within the training length."""
        return pairs * math.log(rope.original_max_position / (turns * 2 * math.pi)) / math.log(rope.theta)

    low, high = channel(rope.beta_fast), channel(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = (torch.arange(pairs, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (rope.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


ROPE_KINDS: dict[str, Callable[[RopeConfig, Tensor], Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _plain,  # differs only past max_position_embeddings, where requests are refused
    "llama3": _llama3,
    "yarn": _yarn,
    "divisors": _divided,
}
"""Kind → frequencies, given base**(2i/head_size)."""
