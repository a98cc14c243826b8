"""Pausing, sleeping and waking: nothing is lost, and nothing is computed meanwhile."""

from __future__ import annotations

import pytest

from headstock.core.engine import LLMEngine, PauseMode, Prompt
from headstock.core.errors import HeadstockError, InvalidInput
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.serving import answers, finish, tokens
from support.tiny import tiny_engine, tiny_folder

PROMPTS = [[5, 9, 13], list(range(30, 63)), [7] * 20]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(folder: ModelFolder) -> list[tuple[int, ...]]:
    return tokens(answers(tiny_engine(folder), PROMPTS, GREEDY))


def add_all(engine: LLMEngine) -> list[str]:
    return [engine.add_request(Prompt(token_ids=tuple(prompt)), GREEDY) for prompt in PROMPTS]


def test_kept_requests_go_on_where_they_were(folder: ModelFolder, expected: list[tuple[int, ...]]) -> None:
    engine = tiny_engine(folder, max_num_batched_tokens=16)
    ids = add_all(engine)
    engine.step()
    engine.client.pause("keep")
    steps = engine.client.stats().num_steps
    assert engine.has_unfinished_requests()
    with pytest.raises(HeadstockError, match="paused"):
        engine.step()
    assert engine.client.stats().num_steps == steps
    engine.client.resume()
    done = finish(engine)
    assert tokens([done[i] for i in ids]) == expected
    assert engine.client.stats().num_preemptions == 0


def test_waiting_lets_requests_finish_and_holds_back_new_ones(
    folder: ModelFolder, expected: list[tuple[int, ...]]
) -> None:
    engine = tiny_engine(folder)
    core = engine.core
    ids = add_all(engine)
    core.pause("wait")
    later = add_all(engine)
    done = {}
    while core.can_step:
        done.update((output.request_id, output) for output in engine.step())
    assert sorted(done) == sorted(ids)
    assert engine.has_unfinished_requests()
    (aborted,) = engine.abort_request(later[:1])
    assert aborted.outputs[0].finish_reason == "abort"
    engine.client.resume()
    rest = finish(engine)
    assert tokens([rest[i] for i in later[1:]]) == expected[1:]
    assert tokens([done[i] for i in ids]) == expected


def test_what_waits_in_a_pause_is_checked_when_it_comes(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, max_model_len=16)
    engine.client.pause("wait")
    with pytest.raises(InvalidInput, match="max_model_len"):
        engine.add_request(Prompt(token_ids=(3,) * 20), GREEDY)
    assert not engine.has_unfinished_requests()


def test_an_aborting_pause_ends_all_and_the_next_requests_wait(
    folder: ModelFolder, expected: list[tuple[int, ...]]
) -> None:
    engine = tiny_engine(folder)
    ids = add_all(engine)
    engine.step()
    engine.client.pause("abort")
    done = finish(engine)
    assert [done[i].outputs[0].finish_reason for i in ids] == ["abort"] * 3
    assert engine.client.stats().kv_usage == 0
    later = add_all(engine)
    with pytest.raises(HeadstockError, match="paused"):
        engine.step()
    engine.client.resume()
    rest = finish(engine)
    assert tokens([rest[i] for i in later]) == expected


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_holds_no_cache_and_wakes_up_whole(
    folder: ModelFolder, expected: list[tuple[int, ...]], level: int
) -> None:
    engine = tiny_engine(folder, block_size=4)
    assert tokens(answers(engine, PROMPTS, GREEDY)) == expected
    engine.client.sleep(level)
    engine.client.sleep(level)
    held = vars(engine.core.worker)
    assert ("runner" in held, "_model" in held) == (False, level == 1)
    ids = add_all(engine)
    with pytest.raises(HeadstockError, match="asleep"):
        engine.step()
    engine.client.wake_up()
    done = finish(engine)
    assert tokens([done[i] for i in ids]) == expected
    assert [done[i].num_cached_tokens for i in ids] == [0, 0, 0]


def test_a_deeper_sleep_may_follow(folder: ModelFolder, expected: list[tuple[int, ...]]) -> None:
    engine = tiny_engine(folder)
    ids = []
    for level, weights in ((1, True), (2, False), (1, False)):
        engine.client.sleep(level)
        assert ("_model" in vars(engine.core.worker)) == weights
        ids = ids or add_all(engine)  # they wait, and are in nobody's way
    engine.client.wake_up()
    done = finish(engine)
    assert tokens([done[i] for i in ids]) == expected


def test_nobody_sleeps_while_requests_live(folder: ModelFolder) -> None:
    engine = tiny_engine(folder)
    add_all(engine)
    with pytest.raises(HeadstockError, match="pause it first"):
        engine.client.sleep()
    assert all(output.finished for output in finish(engine).values())


@pytest.mark.parametrize("mode", ["never", "", None])
def test_an_unknown_pause_is_refused(folder: ModelFolder, mode: PauseMode) -> None:
    engine = tiny_engine(folder)
    with pytest.raises(InvalidInput, match="abort, wait, keep"):
        engine.client.pause(mode)
    with pytest.raises(InvalidInput, match="level"):
        engine.client.sleep(3)
