"""`IncrementalDetokenizer`: the text of one completion as its tokens arrive, ended by its stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from ..params import SamplingParams
from .decoding import TextDecoder, TokenBytes
from .stop import StopStrings


class IncrementalDetokenizer:
    """One completion's text. However its tokens are cut into pushes, the deltas put together are the same.

    The text continues that of the prompt: vocabularies that drop a leading space at the start of a text drop it only
    where the prompt shows no text.
    """

    def __init__(self, tokenizer: TokenBytes, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Of `prompt_token_ids` only the last few are looked at."""
        self._decoder = TextDecoder(tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        self._searching = bool(params.stops)
        self._detokenize = params.detokenize
        self._render_stop_token = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._parts: list[str] = []
        self.num_tokens = 0
        """Tokens that belong to the completion. After a stop string, those that follow its last token do not count."""

    @property
    def text(self) -> str:
        """All text released so far: the deltas put together."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, or None. The engine does not know of it: the caller ends the request."""
        return self._stops.match.stop if self._stops.match else None

    def push(self, new_token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> str:
        """Add tokens and return the text they release, often none.

        `ends_with_stop_token` says that the last one is the end-of-sequence or stop token that ended the request: it
        counts, and is rendered only with `include_stop_str_in_output`. Tokens after a stop string are ignored.
        """
        if self._stops.match is not None:
            return ""
        unseen = 1 if ends_with_stop_token and not self._render_stop_token else 0
        rendered = new_token_ids[: len(new_token_ids) - unseen]
        if not self._detokenize:
            self.num_tokens += len(new_token_ids)
            return ""
        if not self._searching:
            self.num_tokens += len(new_token_ids)
            return self._release(self._decoder.push(rendered))
        released: list[str] = []
        for token in rendered:
            self.num_tokens += 1
            piece = self._decoder.push((token,))
            released.append(self._stops.push(piece, search=self.num_tokens > self._min_tokens))
            if self._stops.match is not None:
                return self._release("".join(released))
        self.num_tokens += unseen
        return self._release("".join(released))

    def finish(self) -> str:
        """End of the completion: release what was withheld; U+FFFD stands for a character that stayed incomplete."""
        if self._stops.match is not None or not self._detokenize:
            return ""
        return self._release(self._stops.flush() + self._decoder.flush())

    def _release(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
