from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.text import StopStrings


def run(pieces: Sequence[str], stops: Sequence[str], *, include: bool = False, unsearched: int = 0):
    """Deltas, and the search in its last state."""
    search = StopStrings(stops, include=include)
    deltas = [search.push(piece, search=index >= unsearched) for index, piece in enumerate(pieces)]
    return [*deltas, search.flush()], search


def expected(pieces: Sequence[str], stops: Sequence[str], *, include: bool = False, unsearched: int = 0):
    """The meaning of stop strings, character by character: text, and the string that ended it."""
    text = ""
    for index, piece in enumerate(pieces):
        for character in piece:
            text += character
            for stop in stops:
                if index >= unsearched and text.endswith(stop):
                    return (text if include else text.removesuffix(stop)), stop
    return text, None


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "matched"),
    [
        (["DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "", "DEFGHIJ"),
        (["DEF", "X"], ["DEFGHIJ"], "DEFX", None),
        (["The", " quick", " br", "own", " fox", " jumps"], ["own fox"], "The quick br", "own fox"),
        (["ab|STOP|cd"], ["|STOP|"], "ab", "|STOP|"),
        (["x", "en", "d."], ["end.", "end"], "x", "end"),
        (["x", "end."], ["end", "end."], "x", "end"),
        (["one fox"], ["fox", "one fox"], "one ", "fox"),
        (["one fox"], ["one fox", "fox"], "", "one fox"),
        (["text DEFG"], ["DEFGHIJ"], "text DEFG", None),
        (["aa", "ab"], ["aab"], "a", "aab"),
    ],
)
def test_a_stop_string_is_found_across_pieces(pieces, stops, text, matched):
    deltas, search = run(pieces, stops)
    assert "".join(deltas) == text
    assert (search.match.stop if search.match else None) == matched


def test_the_string_that_completes_earliest_wins_over_the_one_that_starts_earliest():
    deltas, search = run(["a long stop here"], ["long stop here", "stop"])
    assert "".join(deltas) == "a long "
    assert search.match.stop == "stop"
    assert search.match.start == 7


def test_the_stop_string_is_included_once_when_asked_for():
    deltas, _ = run(["ab|ST", "OP|cd", "ef"], ["|STOP|"], include=True)
    assert deltas == ["ab", "|STOP|", "", ""]


def test_text_that_cannot_become_a_stop_string_is_not_withheld():
    deltas, _ = run(["plain", " text", " D", "X"], ["DEFGHIJ"])
    assert deltas == ["plain", " text", " ", "DX", ""]


def test_a_withheld_end_is_released_at_the_end():
    deltas, _ = run(["text", " DEF"], ["DEFGHIJ"])
    assert deltas == ["text", " ", "DEF"]


def test_a_match_may_begin_but_not_complete_in_unsearched_text():
    assert expected(["stop", "st", "op"], ["stop"], unsearched=2) == ("stop", "stop")
    deltas, search = run(["stop", "st", "op"], ["stop"], unsearched=2)
    assert "".join(deltas) == "stop"
    assert search.match.start == 4


SHORT = st.text("ab", max_size=5)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)


@given(st.lists(SHORT, max_size=8), STOPS, st.booleans(), st.integers(0, 4))
def test_any_pieces_give_the_text_of_the_definition(pieces, stops, include, unsearched):
    deltas, search = run(pieces, stops, include=include, unsearched=unsearched)
    text, matched = expected(pieces, stops, include=include, unsearched=unsearched)
    assert "".join(deltas) == text
    assert (search.match.stop if search.match else None) == matched


@given(st.lists(SHORT, max_size=8), STOPS)
def test_what_is_withheld_always_begins_a_stop_string(pieces, stops):
    search = StopStrings(stops)
    seen = released = ""
    for piece in pieces:
        seen += piece
        released += search.push(piece)
        if search.match is not None:
            break
        withheld = seen[len(released) :]
        assert seen.startswith(released)
        assert not withheld or any(stop.startswith(withheld) and stop != withheld for stop in stops)
