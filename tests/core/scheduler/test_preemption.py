"""Who loses its blocks, and what a request that lost them is told."""

from __future__ import annotations

import pytest

from headstock.core.scheduler import Request
from headstock.core.scheduler.step import Step
from support.scheduling import Served, answer, cache, check_laws, new_request, new_scheduler


def preempted(steps):
    return [step.preempted_request_ids for step in steps if step.preempted_request_ids]


def test_first_come_first_served_preempts_the_last_and_everybody_gets_the_same_answer():
    served = Served(new_scheduler(cache(9)))
    served.add(*(new_request(name, range(i * 10, i * 10 + 8), max_tokens=12) for i, name in enumerate("abc")))
    steps = served.finish()
    assert preempted(steps)[0] == ("c",)
    assert "a" not in {name for names in preempted(steps) for name in names}
    for i, name in enumerate("abc"):
        assert served.answers[name].tokens == answer(range(i * 10, i * 10 + 8), 12)
        assert served.answers[name].finish_reason == "length"


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("start", range(5, 10))
def test_preempted_requests_tell_all_a_large_cache_would_and_nothing_twice(caching, policy, start):
    """Prompts of `start` tokens put the preemptions at every place of a block."""
    told = []
    for num_blocks in (8, 200):
        served = Served(new_scheduler(cache(num_blocks, enable_prefix_caching=caching), policy=policy))
        for i in range(4):
            prompt = range(i * 10, i * 10 + start)
            served.add(new_request(str(i), prompt, max_tokens=12, logprobs=0, prompt_logprobs=0, priority=i % 2))
        served.finish()
        told.append(served)
    small, large = told
    assert small.scheduler.stats().num_preemptions >= 2
    assert large.scheduler.stats().num_preemptions == 0
    for name, reference in large.answers.items():
        found = small.answers[name]
        assert found.tokens == reference.tokens
        assert found.logprobs == reference.logprobs
        assert found.prompt_logprobs == reference.prompt_logprobs
        assert len(found.prompt_logprobs) == start - 1
        assert found.finish_reason == reference.finish_reason
        assert found.last.num_cached_tokens == reference.last.num_cached_tokens


def test_a_prompt_preempted_between_its_chunks_tells_each_prompt_logprob_once():
    served = Served(new_scheduler(cache(8), max_num_batched_tokens=5, max_num_seqs=2))
    served.add(new_request("old", range(8), max_tokens=17), new_request("new", range(50, 65), prompt_logprobs=0))
    for _ in range(4):
        served.step()
    request = served.scheduler._requests["new"]
    assert 0 < request.num_computed_tokens < 15
    served.scheduler._preempt(request, Step(0))
    served.runner.held.pop("new")
    served.finish()
    alone = Served(new_scheduler(cache(99)))
    alone.add(new_request("new", range(50, 65), prompt_logprobs=0))
    alone.finish()
    assert served.answers["new"].prompt_logprobs == alone.answers["new"].prompt_logprobs


def test_a_resumed_request_comes_back_as_new_with_all_its_tokens():
    served = Served(new_scheduler(cache(9, enable_prefix_caching=False)))
    served.add(new_request("a", range(12), max_tokens=12), new_request("b", range(50, 62), max_tokens=12))
    steps = served.finish()
    gone = next(i for i, step in enumerate(steps) if step.preempted_request_ids)
    assert steps[gone].preempted_request_ids == ("b",)
    assert "b" not in steps[gone].num_scheduled_tokens
    back = next(step for step in steps[gone:] if step.new_requests)
    (again,) = back.new_requests
    known = 12 + gone  # a token a step, none in the step that took the blocks
    assert again.token_ids == (*range(50, 62), *answer(range(50, 62), 12))[:known]
    assert (again.num_prompt_tokens, again.num_computed_tokens) == (12, 0)
    assert back.num_scheduled_tokens["b"] == known


def test_finding_its_own_blocks_again_is_no_cache_hit():
    served = Served(new_scheduler(cache(9)))
    served.add(new_request("a", range(12), max_tokens=12), new_request("b", range(50, 62), max_tokens=12))
    served.finish()
    stats = served.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache.num_resumed_hit_tokens > 0
    assert (stats.prefix_cache.num_hit_tokens, stats.prefix_cache.hit_rate) == (0, 0.0)
    assert (stats.prefix_cache.num_requests, stats.prefix_cache.num_query_tokens) == (2, 24)
    assert served.answers["b"].last.num_cached_tokens == 0


def test_a_request_can_be_preempted_twice():
    served = Served(new_scheduler(cache(8)))
    served.add(*(new_request(str(i), range(i * 10, i * 10 + 6), max_tokens=12) for i in range(4)))
    served.finish()
    assert max(told.last.num_preemptions for told in served.answers.values()) == 2
    assert all(told.tokens == answer(range(i * 10, i * 10 + 6), 12) for i, told in enumerate(served.answers.values()))


def test_a_victim_already_in_the_step_is_taken_out_of_it():
    """A runs first and is the least important; B's next token needs a block, and none is free."""
    served = Served(new_scheduler(cache(6), policy="priority"))
    served.add(new_request("A", range(6), priority=2, max_tokens=6))
    served.step()
    served.add(new_request("B", range(20, 28), priority=1, max_tokens=6), new_request("C", [40], priority=1))
    served.step()
    assert list(served.scheduler._running) == ["A", "B", "C"]
    assert served.scheduler.kv.pool.num_free_blocks == 0
    step = served.scheduler.schedule()
    check_laws(served.scheduler, step)
    assert step.num_scheduled_tokens == {"B": 1, "C": 1}
    assert [cached.request_id for cached in step.cached_requests] == ["B", "C"]
    assert step.preempted_request_ids == ("A",)
    assert served.scheduler.kv.block_ids("A") == ((),)
    assert served.scheduler._requests["A"].num_computed_tokens == 0
    served.tell(served.scheduler.update_from_output(step, served.runner.run(step)))
    back = next(new for step in served.finish() for new in step.new_requests)
    assert back.request_id == "A"
    assert served.answers["A"].tokens == answer(range(6), 6)
    assert served.answers["B"].tokens == answer(range(20, 28), 6)


def test_a_victims_share_of_the_budget_is_free_again():
    step = Step(8)
    placed, other = (
        Request(new_request(name, [1]), chains=(), order=0, max_model_len=9) for name in ("placed", "other")
    )
    step.place(placed, 5, ((),))
    step.preempt(placed)
    step.preempt(other)
    assert step.budget == 8
    assert step.output(()).num_scheduled_tokens == {}
    assert step.output(()).preempted_request_ids == ("placed", "other")


def test_what_a_victim_would_have_computed_in_the_step_is_not_in_the_cache():
    """A's chunk would fill blocks in the step that A is taken out of; who finds them would read what nobody wrote."""
    served = Served(
        new_scheduler(cache(14), policy="priority", max_num_batched_tokens=32, long_prefill_token_threshold=8)
    )
    served.add(new_request("grows", range(100, 110), priority=0, max_tokens=20))
    served.step()
    served.step()
    served.add(new_request("A", range(24), priority=9))
    served.step()
    served.add(new_request("B", range(50, 66), priority=1))
    served.step()
    step = served.step()
    assert step.preempted_request_ids == ("A",)
    keys = served.scheduler._requests["A"].chains[0].keys
    assert len(served.scheduler.kv.pool.index.match(0, keys)) == 4  # 16 tokens of two steps
    served.finish()
    assert served.answers["A"].tokens == answer(range(24), 4)


def test_a_request_that_is_its_own_victim_does_not_stop_those_behind_it():
    served = Served(new_scheduler(cache(5), policy="priority"))
    served.add(new_request("low", range(7), priority=9))
    served.step()
    served.add(new_request("high", range(20, 25), priority=0))
    served.step()
    step = served.step()
    assert step.preempted_request_ids == ("low",)
    assert step.num_scheduled_tokens == {"high": 1}
    served.finish()
    assert served.answers["low"].tokens == answer(range(7), 4)
    assert served.answers["high"].tokens == answer(range(20, 25), 4)


def test_nobody_is_admitted_into_a_step_that_took_blocks_from_others():
    served = Served(new_scheduler(cache(7), policy="priority"))
    served.add(new_request("a", range(9), max_tokens=8), new_request("b", range(50, 59), priority=2, max_tokens=8))
    for _ in range(4):
        served.step()
    assert served.scheduler.kv.pool.num_free_blocks == 0
    served.add(new_request("small", [1], priority=1, max_tokens=1))
    step = served.step()
    assert step.preempted_request_ids == ("b",)
    assert served.scheduler.kv.pool.num_free_blocks > 0
    assert step.new_requests == ()
    served.finish()


def test_preempted_requests_keep_their_order():
    served = Served(new_scheduler(cache(10)))
    served.add(*(new_request(name, range(i * 10, i * 10 + 8), max_tokens=16) for i, name in enumerate("abcd")))
    finished = []
    while served.scheduler.has_unfinished:
        served.step()
        finished += [n for n, told in served.answers.items() if told.finish_reason and n not in finished]
    assert finished == list("abcd")
