"""Who computes how many tokens in a step."""

from __future__ import annotations

import math

import pytest

from headstock.core.scheduler import ModelRunnerOutput
from support.scheduling import Served, answer, cache, new_request, new_scheduler


def counts(step):
    return dict(step.num_scheduled_tokens)


def test_a_prompt_is_computed_at_once_and_then_token_by_token():
    served = Served(new_scheduler(cache(16)))
    served.add(new_request("r", range(10), max_tokens=3))
    assert [counts(step) for step in served.finish()] == [{"r": 10}, {"r": 1}, {"r": 1}]
    assert served.answers["r"].tokens == answer(range(10), 3)


def test_a_long_prompt_comes_in_chunks_and_samples_after_the_last():
    served = Served(new_scheduler(cache(16), max_num_batched_tokens=8, max_num_seqs=4))
    served.add(new_request("r", range(20), max_tokens=2))
    tokens = []
    for _ in range(4):
        served.step()
        tokens.append(len(served.answers["r"].tokens))
    assert tokens == [0, 0, 1, 2]


def test_a_partial_prompt_is_no_news():
    scheduler = new_scheduler(cache(16), max_num_batched_tokens=8)
    scheduler.add(new_request("r", range(20)))
    assert scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput()) == []


def test_a_worker_is_told_everything_once_and_then_only_changes():
    scheduler = new_scheduler(cache(16), max_num_batched_tokens=8)
    scheduler.add(new_request("r", range(11), eos_token_ids=(7,)))
    first = scheduler.schedule()
    (new,) = first.new_requests
    assert (new.token_ids, new.num_prompt_tokens, new.num_computed_tokens) == (tuple(range(11)), 11, 0)
    assert (new.block_ids, new.eos_token_ids) == (((1, 2),), (7,))
    assert first.cached_requests == ()
    scheduler.update_from_output(first, ModelRunnerOutput())
    second = scheduler.schedule()
    (cached,) = second.cached_requests
    assert (cached.new_block_ids, cached.num_computed_tokens) == (((3,),), 8)
    assert second.new_requests == ()
    scheduler.update_from_output(second, ModelRunnerOutput(sampled_token_ids={"r": (5,)}))
    (third,) = scheduler.schedule().cached_requests
    assert (third.new_block_ids, third.num_computed_tokens) == (((),), 11)


def test_a_cached_prefix_is_skipped_and_reported():
    served = Served(new_scheduler(cache(16)))
    served.add(new_request("first", range(10)))
    served.finish()
    served.add(new_request("again", range(10)))
    assert counts(served.step()) == {"again": 2}
    served.finish()
    assert served.answers["again"].tokens == served.answers["first"].tokens == answer(range(10), 4)
    assert served.answers["first"].last.num_cached_tokens == 0
    assert served.answers["again"].last.num_cached_tokens == 8
    assert served.scheduler.stats().num_cached_tokens == 8


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (8, 4), (9, 8)])
def test_reported_cached_tokens_are_what_was_really_skipped(length, cached):
    served = Served(new_scheduler(cache(16)))
    for name in ("first", "again"):
        served.add(new_request(name, range(length)))
        served.finish()
        assert served.answers[name].tokens == answer(range(length), 4)
    assert served.answers["again"].last.num_cached_tokens == cached
    assert served.runner.num_computed["first"] - served.runner.num_computed["again"] == cached


def test_requests_of_one_step_share_the_prefix_that_this_step_computes():
    served = Served(new_scheduler(cache(32)))
    served.add(*(new_request(name, [*range(12), i]) for i, name in enumerate("abc")))
    assert counts(served.step()) == {"a": 13, "b": 1, "c": 1}
    served.finish()
    assert [served.answers[name].tokens for name in "abc"] == [answer([*range(12), i], 4) for i in range(3)]


def test_a_salt_keeps_requests_apart():
    served = Served(new_scheduler(cache(32)))
    for i, salt in enumerate((None, "s", "t", "s")):
        served.add(new_request(str(i), range(9), cache_salt=salt))
        served.finish()
    assert [served.answers[str(i)].last.num_cached_tokens for i in range(4)] == [0, 0, 0, 8]


def test_prompt_logprobs_need_the_whole_prompt_computed():
    served = Served(new_scheduler(cache(32), max_num_batched_tokens=8))
    served.add(new_request("first", range(10)))
    served.finish()
    served.add(new_request("again", range(10), prompt_logprobs=0))
    served.finish()
    told = served.answers["again"]
    assert told.last.num_cached_tokens == 0
    assert len(told.prompt_logprobs) == 9
    assert served.scheduler.stats().prefix_cache.num_requests == 1


def test_no_more_run_at_once_than_allowed():
    served = Served(new_scheduler(cache(64), max_num_seqs=2))
    served.add(*(new_request(str(i), [i, 1, 2]) for i in range(5)))
    steps = served.finish()
    assert max(len(step.num_scheduled_tokens) for step in steps) == 2
    assert [name for step in steps for name in (new.request_id for new in step.new_requests)] == list("01234")


def test_no_more_run_at_once_than_a_step_has_tokens():
    served = Served(new_scheduler(cache(64), max_num_batched_tokens=3, max_num_seqs=8))
    served.add(*(new_request(str(i), [i, 1, 2]) for i in range(5)))
    assert max(len(step.num_scheduled_tokens) for step in served.finish()) == 3
    assert all(told.tokens == answer([i, 1, 2], 4) for i, told in enumerate(served.answers.values()))


def test_priority_admits_the_lowest_first():
    served = Served(new_scheduler(cache(64), max_num_seqs=1, policy="priority"))
    served.add(*(new_request(name, [1, 2, 3], priority=p) for name, p in (("c", 5), ("a", -1), ("d", 5), ("b", 0))))
    assert "".join(new.request_id for step in served.finish() for new in step.new_requests) == "abcd"


def test_an_answer_gets_its_token_in_every_step_however_many_prompts_arrive():
    served = Served(new_scheduler(cache(512), max_num_batched_tokens=16))
    served.add(new_request("answer", [1], max_tokens=200))
    served.step()
    prompts = 0
    for i in range(100):
        if i % 2 == 0:
            served.add(new_request(f"prompt {prompts}", range(i, i + 200), max_tokens=2))
            prompts += 1
        step = served.step()
        assert step.num_scheduled_tokens["answer"] == 1
        assert step.total_num_scheduled_tokens <= 16
        assert len(served.answers["answer"].tokens) == i + 2
    steps = served.finish()
    assert all(len(served.answers[f"prompt {i}"].tokens) == 2 for i in range(prompts))
    # 50 prompts of 200 tokens at 14 or 15 a step: none waits longer than all together need.
    assert 100 + len(steps) <= math.ceil(50 * 201 / 14) + 50


def test_a_running_prompt_admitted_first_does_not_hold_up_answers():
    served = Served(new_scheduler(cache(64), max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=6))
    served.add(new_request("long", range(60), max_tokens=1), new_request("short", [1, 2], max_tokens=20))
    served.step()
    for _ in range(8):
        step = served.step()
        assert step.num_scheduled_tokens["short"] == 1
        assert step.num_scheduled_tokens["long"] == 6


def test_with_a_threshold_prompts_advance_side_by_side():
    served = Served(new_scheduler(cache(64), max_num_batched_tokens=16, long_prefill_token_threshold=5))
    served.add(*(new_request(name, range(i, i + 15), max_tokens=1) for i, name in enumerate("abc")))
    assert [counts(step) for step in served.finish()] == [{"a": 5, "b": 5, "c": 5}] * 3


def test_four_cold_prompts_run_together_soon():
    served = Served(new_scheduler(cache(64), max_num_batched_tokens=8, max_num_seqs=4))
    served.add(*(new_request(str(i), range(i * 100, i * 100 + 20), max_tokens=100) for i in range(4)))
    for _ in range(math.ceil(4 * 20 / 8) + 1):
        served.step()
    assert served.scheduler.stats().num_running == 4


def test_a_request_is_admitted_as_soon_as_there_is_room_not_when_all_is_over():
    served = Served(new_scheduler(cache(11), max_num_seqs=8))
    served.add(*(new_request(str(i), range(i * 10, i * 10 + 9), max_tokens=2 + i // 3) for i in range(4)))
    served.add(new_request("late", range(50, 59), max_tokens=3))
    started = [(i, new.request_id) for i, step in enumerate(served.finish()) for new in step.new_requests]
    assert started == [(0, "0"), (0, "1"), (0, "2"), (2, "3"), (2, "late")]


def test_a_chunk_that_needs_more_blocks_than_are_free_waits():
    served = Served(new_scheduler(cache(8)))
    served.add(new_request("first", range(15), max_tokens=2))
    served.step()
    served.add(new_request("second", range(100, 116)))
    assert served.scheduler.kv.pool.num_free_blocks == 3
    assert counts(served.step()) == {"first": 1}
    served.finish()
    assert served.answers["second"].tokens == answer(range(100, 116), 4)
    assert served.scheduler.stats().num_preemptions == 0


def test_blocks_for_the_rest_of_an_admitted_prompt_are_spoken_for():
    served = Served(new_scheduler(cache(8), max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=4))
    served.add(new_request("long", range(16), max_tokens=1), new_request("other", range(50, 66), max_tokens=1))
    steps = served.finish()
    assert served.scheduler.stats().num_preemptions == 0
    assert [counts(step) for step in steps] == [{"long": 4}] * 4 + [{"other": 4}] * 4


def test_the_watermark_leaves_room_to_grow_while_others_run():
    served = Served(new_scheduler(cache(11), watermark=0.2))
    served.add(new_request("a", range(8)), new_request("b", range(100, 128)))
    assert counts(served.step()) == {"a": 8}
    assert {new.request_id for step in served.finish() for new in step.new_requests} == {"b"}


def test_the_watermark_never_keeps_a_lone_request_waiting():
    served = Served(new_scheduler(cache(11), watermark=0.9))
    served.add(new_request("r", range(36), max_tokens=1))
    assert counts(served.step()) == {"r": 36}


def test_mixed_steps_are_counted():
    served = Served(new_scheduler(cache(64)))
    served.add(new_request("a", range(8), max_tokens=3))
    served.step()
    served.add(new_request("b", range(20, 28), max_tokens=2))
    served.finish()
    stats = served.scheduler.stats()
    assert (stats.num_steps, stats.num_mixed_steps) == (3, 1)


def test_before_the_results_are_in_steps_can_be_scheduled_until_the_last_token_is_on_the_way():
    served = Served(new_scheduler(cache(16)))
    served.add(new_request("r", range(6)))
    steps = [served.scheduler.schedule() for _ in range(6)]
    assert [sum(step.num_scheduled_tokens.values()) for step in steps] == [6, 1, 1, 1, 0, 0]
    for step in steps[:4]:
        served.tell(served.scheduler.update_from_output(step, served.runner.run(step)))
    served.finish()
    assert served.answers["r"].tokens == answer(range(6), 4)


def test_nothing_to_do_is_an_empty_step_that_is_not_counted():
    served = Served(new_scheduler(cache(8)))
    assert served.step().num_scheduled_tokens == {}
    assert served.scheduler.stats().num_steps == 0


def test_finished_requests_are_named_once_in_the_next_step():
    served = Served(new_scheduler(cache(8)))
    served.add(new_request("r", [1], max_tokens=1))
    assert [served.step().finished_request_ids for _ in range(3)] == [(), ("r",), ()]
    assert served.runner.held == {}


def test_stats_are_a_snapshot():
    served = Served(new_scheduler(cache(5)))
    served.add(new_request("a", range(8)), new_request("b", range(20, 28)), new_request("c", [1]))
    served.step()
    stats = served.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (2, 1, 1.0)
    served.finish()
    assert stats.num_running == 2


def test_the_prefix_cache_can_be_forgotten_when_nobody_runs():
    served = Served(new_scheduler(cache(16)))
    served.add(new_request("a", range(9)))
    served.step()
    assert not served.scheduler.reset_prefix_cache()
    served.finish()
    assert served.scheduler.reset_prefix_cache()
    served.add(new_request("b", range(9)))
    served.finish()
    assert served.answers["b"].last.num_cached_tokens == 0


def test_the_first_schedule_is_timed_once():
    served = Served(new_scheduler(cache(16)))
    served.scheduler._clock = iter([12.5]).__next__
    served.add(new_request("a", range(9)))
    served.finish()
    assert served.answers["a"].last.first_scheduled_time == 12.5
