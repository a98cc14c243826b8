"""When requests arrive."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from ...core.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A stream of requests, as vLLM's `bench serve` draws it. Raises `InvalidInput` naming the field."""

    request_rate: float = math.inf
    """Requests a second on average; infinite sends all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in bursts, more is steadier."""

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness"):
            value = getattr(self, name)
            if not value > 0 or (name == "burstiness" and not math.isfinite(value)):
                raise InvalidInput(name, f"must be above 0, not {value}")

    def offsets(self, count: int, seed: int) -> list[float]:
        """Seconds from the start, in order, for `count` requests; the first comes after the first gap."""
        if math.isinf(self.request_rate):
            return [0.0] * count
        rng = random.Random(seed)
        scale = 1 / (self.request_rate * self.burstiness)
        return list(accumulate(rng.gammavariate(self.burstiness, scale) for _ in range(count)))

    def __str__(self) -> str:
        if math.isinf(self.request_rate):
            return "all at once"
        shape = "Poisson" if self.burstiness == 1 else f"gamma, burstiness {self.burstiness:g}"
        return f"{self.request_rate:g} requests/s, {shape}"
