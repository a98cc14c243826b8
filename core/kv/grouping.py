"""Which layers share a block table, and which share memory: a model's layers as KV groups over one pool of blocks.

The idea is vLLM's hybrid KV cache: layers that keep equally much of a request are cut into groups of equal size. The
first layers of all groups share one piece of memory, the second ones another, so a block of any group has the same
bytes and goes from one to the other as requests need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from .spec import FULL_RETENTION, KVGroupSpec, Retention

SLACK = 1.05
"""Up to this factor more memory is worth fewer groups: each costs a table, its slots and its plans in every step."""

Parts = list[tuple[Retention, tuple[str, ...]]]
"""Groups in the making: what they keep, and their layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayer:
    """One layer's cache, as far as grouping goes."""

    form: Hashable
    """Equal for layers that can take turns in the same memory, such as their planes."""
    bytes_per_block: int
    retention: Retention = FULL_RETENTION


def group_layers(layers: Mapping[str, KVLayer], block_size: int, max_model_len: int) -> tuple[KVGroupSpec, ...]:
    """The KV groups of a model's `layers`, by name and in order, in blocks of `block_size` tokens.

    Of all sizes of groups, the largest for which a request of `max_model_len` takes the least memory, nearly. That is a
    single group, in which all layers keep every token, where windows would save nothing.
    """
    kept: dict[Retention, list[str]] = {}
    for name, layer in layers.items():
        window = layer.retention.window
        saves = window is not None and window < max_model_len
        kept.setdefault(layer.retention if saves else FULL_RETENTION, []).append(name)
    if len(kept) == 1:
        return _specs([(retention, tuple(names)) for retention, names in kept.items()], layers, block_size)
    candidates = [_specs([(FULL_RETENTION, tuple(layers))], layers, block_size)]
    for size in range(max(map(len, kept.values())), 0, -1):
        candidates.append(_specs(_cut(kept, size), layers, block_size))
    costs = [_bytes_of_request(groups, max_model_len) for groups in candidates]
    return next(groups for groups, cost in zip(candidates, costs, strict=True) if cost <= SLACK * min(costs))


def places(groups: Sequence[Sequence[str]], layers: Mapping[str, KVLayer]) -> dict[str, tuple[Hashable, int]]:
    """For each layer of `groups`, the piece of memory it is kept in: (form, number). A group has a place but once."""
    found: dict[str, tuple[Hashable, int]] = {}
    for names in groups:
        taken: Counter[Hashable] = Counter()
        for name in names:
            form = layers[name].form
            found[name] = (form, taken[form])
            taken[form] += 1
    return found


def _cut(kept: Mapping[Retention, Sequence[str]], size: int) -> Parts:
    """Groups of at most `size` layers each, of nearly equal numbers, full retention first."""
    parts: Parts = []
    for retention, names in sorted(kept.items(), key=lambda item: item[0] != FULL_RETENTION):
        count = -(-len(names) // size)
        parts += [(retention, tuple(names[i::count])) for i in range(count)]
    return parts


def _specs(parts: Parts, layers: Mapping[str, KVLayer], block_size: int) -> tuple[KVGroupSpec, ...]:
    memory = {place: layers[name].bytes_per_block for name, place in places([n for _, n in parts], layers).items()}
    return tuple(
        KVGroupSpec(block_size=block_size, bytes_per_block=sum(memory.values()), layer_names=names, retention=retention)
        for retention, names in parts
    )


def _bytes_of_request(groups: Sequence[KVGroupSpec], num_tokens: int) -> int:
    """Bytes that a request of `num_tokens` owns while it answers, a token a step."""
    return sum(group.bytes_per_block * group.blocks_for(num_tokens, 1) for group in groups)
