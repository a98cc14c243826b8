"""What a model costs on a device by arithmetic alone: memory, and the limits that bandwidth and compute set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.attention import AttentionSpec, Device


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """A model in numbers."""

    weight_bytes: int
    """All weights, as they will lie in memory."""
    bytes_per_step: int
    """Weights that a step reads: all of them, without an embedding of which it looks up a few rows."""
    flops_per_token: int
    """Of the matrix products, attention apart: two for each weight they use."""
    dtype: str
    """That it computes in: a key of `Device.peak_flops`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Upper bounds; None where the device's figures are not known."""

    weight_bytes: int
    kv_bytes_per_token: int
    """K and V of one token in all layers."""
    block_size: int
    budget_bytes: int
    """Memory left for the KV cache: the device's times `utilisation`, less the weights. Activations are not in it."""
    fits: bool
    """Whether weights and the smallest cache go into the memory; where its size is not known, nothing speaks against
    it."""
    num_blocks: int
    num_tokens: int
    """Tokens that fit in the cache if every layer keeps every token: what windows save comes on top. One block, the
    null block, holds none."""
    context: int
    """Tokens of context that the two rates below are for."""
    decode_tokens_per_s: float | None
    """One sequence: each token reads the weights and its K and V once."""
    prefill_tokens_per_s: float | None
    """A prompt of `context` tokens at the device's peak."""


def estimate(
    model: ModelFigures,
    specs: Mapping[str, AttentionSpec],
    device: Device,
    *,
    block_size: int,
    context: int,
    utilisation: float = 0.9,
) -> Estimate:
    """Figures of a model with these layers on `device`, which may be a profile."""
    cached = [spec for spec in specs.values() if spec.kv_source == "cache"]
    per_token = sum(spec.bytes_per_token for spec in cached)
    budget = max(0, int(device.memory_bytes * utilisation) - model.weight_bytes)
    blocks = budget // (per_token * block_size) if per_token else 0
    step = model.bytes_per_step + sum(spec.bytes_per_token * _seen(spec, context) for spec in cached)
    peak = device.peak_flops.get(model.dtype)
    flops = model.flops_per_token * context + _prompt_flops(specs.values(), context)
    return Estimate(
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=per_token,
        block_size=block_size,
        budget_bytes=budget,
        fits=blocks > 1 or not device.memory_bytes or not per_token,
        num_blocks=blocks,
        num_tokens=max(0, blocks - 1) * block_size,
        context=context,
        decode_tokens_per_s=device.bandwidth / step if device.bandwidth else None,
        prefill_tokens_per_s=context * peak / flops if peak and flops else None,
    )


def _seen(spec: AttentionSpec, position: int) -> int:
    """Keys that the query at the end of `position` tokens sees, itself included."""
    if spec.window is None or spec.window[0] < 0:
        return position
    return min(position, spec.window[0] + 1)


def _prompt_flops(specs: Iterable[AttentionSpec], length: int) -> int:
    """Of attention over a prompt: two for each channel of a key, and of a value, that a query head meets."""
    total = 0
    for spec in specs:
        reach = _seen(spec, length)
        pairs = reach * (reach + 1) // 2 + (length - reach) * reach if spec.causal else length * reach
        total += 2 * spec.num_heads * (spec.head_size + spec.head_size_v) * pairs
    return total
