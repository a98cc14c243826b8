"""`Usage`: tokens of one HTTP request, counted as its outputs come. Tokens are counted, not chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.outputs import RequestOutput


class Usage:
    """Prompt tokens count once a prompt, whatever `n`; completion tokens are summed over all answers."""

    def __init__(self, prompt_lengths: Sequence[int]) -> None:
        self.prompt_tokens = sum(prompt_lengths)
        self.completion_tokens = 0
        self._cached = [0] * len(prompt_lengths)

    def add(self, place: int, output: RequestOutput) -> None:
        """Count one delta, or one final output, of the prompt at `place`."""
        self.completion_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        self._cached[place] = max(self._cached[place], output.num_cached_tokens)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV was in the prefix cache."""
        return sum(self._cached)

    def document(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
