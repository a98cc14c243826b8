"""Random numbers without state: the number of a seed and a position, whatever was drawn before or beside it.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) read as a counter-based generator (Salmon et al., SC 2011): output i of a
stream is a hash of its start and i. So a request's tokens do not depend on batch mates, chunking or preemption.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(starts: NDArray[np.uint64], index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Output `index`, from 0, of the SplitMix64 stream that starts at `starts`, elementwise."""
    z = starts + (index + np.uint64(1)) * INCREMENT
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1), of 53 random bits, for each (seed, position)."""
    bits = _hash(seeds, positions)
    return (bits >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def derive_seed(seed: int, number: int) -> int:
    """A seed for the `number`-th stream under `seed`: for requests without one, and for each of `n` completions."""
    return int(_hash(np.array([seed], np.int64), np.array([number], np.int64)).view(np.int64)[0])


def _hash(seeds: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Seeds are hashed before they start a stream: the streams of neighbouring seeds would be shifts of one another."""
    starts = splitmix64(seeds.view(np.uint64), np.zeros(1, np.uint64))
    return splitmix64(starts, numbers.view(np.uint64))
