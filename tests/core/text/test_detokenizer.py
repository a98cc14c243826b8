from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.params import SamplingParams
from headstock.core.text import IncrementalDetokenizer, Tokenizer
from headstock.core.text.tokenizer_files import TokenizerFiles
from support.vocabularies import byte_level

FILES = TokenizerFiles(named={"eos_token": "<|end|>"}, special=frozenset(), eos_token_ids=())
TOKENIZER = Tokenizer(byte_level(), FILES)
(END,) = TOKENIZER.eos_token_ids


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def detokenizer(**params) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(TOKENIZER, ids("Say: "), SamplingParams(**params))


def run(chunks: Sequence[Sequence[int]], **params) -> tuple[list[str], IncrementalDetokenizer]:
    machine = detokenizer(**params)
    return [*(machine.push(chunk) for chunk in chunks), machine.finish()], machine


def test_tokens_after_the_one_that_completes_the_stop_string_are_dropped():
    deltas, machine = run([ids("ab|ST"), ids("OP|cd"), ids("ef")], stop="|STOP|")
    assert deltas == ["ab", "", "", ""]
    assert machine.text == "ab"
    assert machine.stop_reason == "|STOP|"
    assert machine.num_tokens == len("ab|STOP|")


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop():
    _, machine = run([ids("abc")], stop="c", max_tokens=3)
    assert (machine.text, machine.stop_reason, machine.num_tokens) == ("ab", "c", 3)


def test_an_incomplete_stop_string_is_released_at_the_end():
    deltas, machine = run([ids("ab"), ids("|ST")], stop="|STOP|")
    assert deltas == ["ab", "", "|ST"]
    assert machine.stop_reason is None


@pytest.mark.parametrize(("min_tokens", "text", "tokens"), [(0, "", 1), (1, "s", 2), (3, "sss", 4)])
def test_no_stop_string_completes_within_the_first_min_tokens_tokens(min_tokens, text, tokens):
    _, machine = run([[token] for token in ids("ssssss")], stop="s", min_tokens=min_tokens)
    assert (machine.text, machine.num_tokens) == (text, tokens)


@pytest.mark.parametrize("stop", [None, "unseen"])
def test_the_stop_token_counts_but_is_not_rendered(stop):
    machine = detokenizer(skip_special_tokens=False, stop=stop)
    assert machine.push([*ids("hi"), END], ends_with_stop_token=True) == "hi"
    assert machine.finish() == ""
    assert machine.num_tokens == 3


def test_the_stop_token_is_rendered_when_asked_for():
    machine = detokenizer(include_stop_str_in_output=True, skip_special_tokens=False)
    assert machine.push([*ids("hi"), END], ends_with_stop_token=True) == "hi<|end|>"


def test_the_stop_token_does_not_count_after_a_stop_string():
    machine = detokenizer(stop="i")
    machine.push([*ids("hi"), END], ends_with_stop_token=True)
    assert (machine.num_tokens, machine.stop_reason) == (2, "i")


def test_other_special_tokens_are_skipped_or_shown():
    assert run([[*ids("a"), END, *ids("b")]])[1].text == "ab"
    assert run([[*ids("a"), END, *ids("b")]], skip_special_tokens=False)[1].text == "a<|end|>b"


def test_without_detokenization_tokens_are_counted_and_there_is_no_text():
    deltas, machine = run([ids("abc")], detokenize=False)
    assert deltas == ["", ""]
    assert machine.num_tokens == 3


def test_a_broken_end_follows_withheld_text():
    deltas, _ = run([ids("ab|ST"), ids("é")[:1], TOKENIZER.encode("\U0001f336")[:1]], stop=["|STOP|", "Zé|"])
    assert deltas[-1] == "\ufffd"
    assert "".join(deltas) == "ab|STé\ufffd"


TOKENS = st.lists(st.sampled_from([*ids("ab |é\U0001f336"), END, *ids(" the fox")]), max_size=14)


@given(TOKENS, st.lists(st.integers(0, 14), max_size=6), st.lists(st.text("ab |é", min_size=1, max_size=4), max_size=3),
       st.booleans(), st.integers(0, 4))  # fmt: skip
def test_the_text_does_not_depend_on_how_the_tokens_arrive(tokens, cuts, stops, include, min_tokens):
    params = {"stop": stops, "include_stop_str_in_output": include, "min_tokens": min_tokens}
    edges = [0, *sorted(c % (len(tokens) + 1) for c in cuts), len(tokens)]
    deltas, streamed = run([tokens[a:b] for a, b in itertools.pairwise(edges)], **params)
    _, whole = run([tokens], **params)
    assert "".join(deltas) == streamed.text == whole.text
    assert (streamed.stop_reason, streamed.num_tokens) == (whole.stop_reason, whole.num_tokens)
    kept = TOKENIZER.decode(tokens[: whole.num_tokens])
    assert kept.startswith(whole.text)
    if whole.stop_reason is None:
        assert whole.text == kept
    else:
        assert whole.stop_reason in kept
        assert include is whole.text.endswith(whole.stop_reason) or not include
