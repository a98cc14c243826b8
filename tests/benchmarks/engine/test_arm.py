"""Arms: answers are counted before times count, and what fails is a failure and no number."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from headstock import LLM, SamplingParams
from headstock.benchmarks.engine.arm import Arm, Turn, agreement
from headstock.benchmarks.engine.workload import Request, Workload
from headstock.core.errors import BackendError
from headstock.plugins import Guard
from support.tiny import tiny_folder

WORK = Workload(
    name="three", requests=tuple(Request(token_ids=tuple(range(5, 5 + n)), output_len=n % 4 + 1) for n in (7, 40, 33))
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


@pytest.fixture
def told():
    return []


@pytest.fixture
def arm(told):
    return Arm("a", WORK, Guard(), lambda: told.append(1))


@pytest.fixture
def loaded(arm, tiny):
    arm.load(lambda: LLM(tiny, attention_backend="sdpa"))
    return arm


def change(arm, monkeypatch, **changes):
    """Let the engine of `arm` be asked other than the workload says."""
    engine = arm.llm.engine
    add = engine.add_request
    monkeypatch.setattr(
        engine, "add_request", lambda prompt, params, **rest: add(prompt, replace(params, **changes), **rest)
    )


def test_a_turn_has_a_time_for_every_token(loaded):
    (seconds,) = loaded.turn(1, False)
    (turn,) = loaded.turns
    assert [len(line.token_times) for line in turn.timelines] == [4, 1, 2]
    assert [line.num_prompt_tokens for line in turn.timelines] == [7, 40, 33]
    assert all(line.ttft > 0 and list(line.token_times) == sorted(line.token_times) for line in turn.timelines)
    assert turn.elapsed == seconds == max(line.e2el for line in turn.timelines)
    assert [len(ids) for ids in turn.token_ids] == [4, 1, 2]


def test_answers_are_those_of_generate_and_every_turn_begins_with_an_empty_cache(loaded):
    loaded.turn(1, False)
    loaded.turn(1, False)
    one, two = loaded.turns
    assert one.token_ids == two.token_ids
    assert one.num_cached_tokens == two.num_cached_tokens == 32  # that prompts share, and nothing of the turn before
    params = [SamplingParams(temperature=0, max_tokens=r.output_len, ignore_eos=True) for r in WORK.requests]
    outputs = loaded.llm.generate([list(r.token_ids) for r in WORK.requests], params, use_tqdm=False)
    assert tuple(o.outputs[0].token_ids for o in outputs) == one.token_ids


def test_warm_up_turns_are_told_and_do_not_count(loaded, told):
    loaded.run_uncounted(2)
    assert (len(loaded.warm_seconds), loaded.turns, len(told)) == (2, [], 2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"max_tokens": 1}, r"request 0 was to have 4 tokens and has 1 \(length\)"),
        ({"max_tokens": 6}, r"request 0 was to have 4 tokens and has 6 \(length\)"),
    ],
)
def test_a_wrong_number_of_tokens_is_a_failure_and_no_time(loaded, monkeypatch, told, changes, problem):
    change(loaded, monkeypatch, **changes)
    assert math.isnan(loaded.turn(1, False)[0])
    assert loaded.turns == []
    assert loaded.failure.startswith("WrongAnswer: ")
    assert re.search(problem, loaded.failure)


def test_after_a_failure_nothing_is_computed_any_more(loaded, monkeypatch, told):
    monkeypatch.setattr(loaded.llm.engine, "step", lambda: 1 / 0)
    loaded.run_uncounted(2)
    assert loaded.failure == "ZeroDivisionError: division by zero"
    monkeypatch.undo()
    assert math.isnan(loaded.turn(1, False)[0])
    assert (loaded.turns, loaded.warm_seconds, len(told)) == ([], (), 3)


def test_a_refusal_of_ours_passes_and_other_errors_are_the_arms(arm):
    def refuse():
        raise BackendError("no such backend")

    with pytest.raises(BackendError):
        arm.load(refuse)
    arm.load(lambda: 1 / 0)
    assert arm.failure == "ZeroDivisionError: division by zero"


def test_arms_agree_up_to_the_first_difference_of_each_answer():
    def turn(*answers):
        return Turn(elapsed=1.0, timelines=(), token_ids=answers, num_cached_tokens=0, num_preemptions=0)

    assert agreement(turn((1, 2, 3, 4), (5, 6)), turn((1, 2, 9, 4), (5, 6))) == pytest.approx(4 / 6)
    assert agreement(turn((1, 2)), turn((1, 2))) == 1
