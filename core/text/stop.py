"""Stop strings: found where they complete, never shown, and no text withheld longer than needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """A stop string that ended a text."""

    stop: str
    """The string, as the user wrote it."""
    start: int
    """Where it starts in the text, in characters."""


class StopStrings:
    """Search of one growing text.

    The match that completes earliest wins; of several that complete at the same character, the first of the list. Text
    is released as soon as it can no longer be part of a match: what is withheld is the longest end of the text that
    begins some stop string, so never more than the longest string less one character.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include` keeps the stop string in the text. No string may be empty."""
        self._stops = tuple(stops)
        self._include = include
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._window = ""  # the last `_reach` characters seen, or fewer at the start of the text
        self._held = 0  # how many of them, from the end, are not released
        self._length = 0  # characters seen
        self.match: StopMatch | None = None
        """What ended the text; set once."""

    def push(self, text: str, *, search: bool = True) -> str:
        """Add `text` and return what is released by it; nothing more after a match.

        With `search` off no match may complete inside `text`; one that begins in it and completes later counts.
        """
        if self.match is not None or not text:
            return ""
        old = len(self._window)
        window = self._window + text
        origin = self._length - old  # place of the window's first character in the text
        unreleased = old - self._held
        self._length += len(text)
        if search and (found := self._earliest(window, old)):
            start, stop = found
            self.match = StopMatch(stop=stop, start=origin + start)
            return window[unreleased : start + len(stop) if self._include else start]
        self._held = self._beginning(window)
        self._window = window[len(window) - self._reach :] if self._reach < len(window) else window
        return window[unreleased : len(window) - self._held]

    def flush(self) -> str:
        """End of the text without a match: what was withheld."""
        held = self._window[len(self._window) - self._held :] if self.match is None else ""
        self._held = 0
        return held

    def _earliest(self, window: str, old: int) -> tuple[int, str] | None:
        """Start and string of the match that completes earliest, past the first `old` characters of `window`."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            start = window.find(stop, max(0, old - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best[0] + len(best[1])):
                best = start, stop
        return best

    def _beginning(self, window: str) -> int:
        """Length of the longest end of `window` that begins, but is not, some stop string."""
        longest = 0
        for stop in self._stops:
            start = max(0, len(window) - len(stop) + 1)
            while (start := window.find(stop[0], start)) >= 0 and len(window) - start > longest:
                if stop.startswith(window[start:]):
                    longest = len(window) - start
                    break
                start += 1
        return longest
