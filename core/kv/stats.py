"""How well the prefix cache does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheStats:
    """Counts since the start, made at admission, so that looking twice counts once."""

    num_requests: int = 0
    """Requests admitted for the first time that may read the cache."""
    num_query_tokens: int = 0
    """Their tokens."""
    num_hit_tokens: int = 0
    """Those of them whose KV was there."""
    num_resumed_hit_tokens: int = 0
    """Tokens that requests found again after a preemption, mostly their own: saved work, but no sign of sharing."""
    num_lost_tokens: tuple[int, ...] = ()
    """Per KV group, tokens of first-time requests that other groups had cached and that were computed all the same,
    because this group had not, or not that many. Empty with a single group, which limits nobody."""

    @property
    def hit_rate(self) -> float:
        """Share of first-time tokens that were cached, 0 to 1."""
        return self.num_hit_tokens / self.num_query_tokens if self.num_query_tokens else 0.0

    def admitted(
        self, num_tokens: int, num_hit_tokens: int, lost_tokens: Sequence[int] = (), *, resumed: bool
    ) -> PrefixCacheStats:
        """These counts and one more admission, with the tokens that each group lost."""
        if resumed:
            return replace(self, num_resumed_hit_tokens=self.num_resumed_hit_tokens + num_hit_tokens)
        before = self.num_lost_tokens or (0,) * len(lost_tokens)
        return replace(
            self,
            num_requests=self.num_requests + 1,
            num_query_tokens=self.num_query_tokens + num_tokens,
            num_hit_tokens=self.num_hit_tokens + num_hit_tokens,
            num_lost_tokens=tuple([a + b for a, b in zip(before, lost_tokens, strict=True)]),
        )
