"""`Draw`: what makes the inputs of one call differ from those of all others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from .shapes import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Factors of what a call computes on. They are drawn anew for every call, timed or checked, so that a kernel which
    answers from memory is wrong, and not fast."""

    query: float = 1.0
    """Of all queries."""
    key: float = 1.0
    """Of the keys of the step's new tokens, which are written into the cache before the call."""
    value: float = 1.0
    """Of their values."""

    @property
    def factors(self) -> tuple[float, float, float]:
        """Query, key, value."""
        return self.query, self.key, self.value


PLAIN = Draw()
"""The first call computes on the numbers as they are."""


def draws(shape: Shape, seed: int) -> Iterator[Draw]:
    """For calls on `shape`, without end.

    One new token among many weighs little: its values are large enough to be half of the output, so that a kernel which
    does not look at what was written is far off the truth, in 16 bits, too.
    """
    random = Random(seed)
    weight = math.sqrt(max(length / queries for queries, length in shape.sequences))
    while True:
        one, two, three = (math.exp(random.uniform(-0.7, 0.7)) for _ in range(3))
        yield Draw(query=one, key=two, value=weight * three)
