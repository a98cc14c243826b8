"""How answers end, and what happens to those that are called off."""

from __future__ import annotations

import pytest

from headstock.core.errors import HeadstockError
from headstock.core.scheduler import ModelRunnerOutput, TokenLogprobs
from support.scheduling import Served, answer, cache, check_laws, new_request, new_scheduler

EOS = 7


def scripted(tokens, **options):
    """One request whose model says `tokens`, one a step; what it was told."""
    scheduler = new_scheduler(cache(32), max_model_len=options.pop("max_model_len", 100))
    scheduler.add(new_request("r", [1, 2, 3], eos_token_ids=(EOS, 8), **options))
    told, last = [], None
    for token in tokens:
        step = scheduler.schedule()
        (last,) = scheduler.update_from_output(step, ModelRunnerOutput(sampled_token_ids={"r": (token,)}))
        told += last.new_token_ids
        check_laws(scheduler)
        if last.finish_reason:
            assert not scheduler.has_unfinished
            break
    return told, last.finish_reason, last.stop_reason


@pytest.mark.parametrize(
    ("says", "options", "told"),
    [
        ([EOS], {}, ([EOS], "stop", None)),
        ([8], {}, ([8], "stop", None)),
        ([1, 2, 3, EOS], {"max_tokens": 4}, ([1, 2, 3, EOS], "stop", None)),
        ([1, 2, 3, 4], {"max_tokens": 4}, ([1, 2, 3, 4], "length", None)),
        ([1, 5], {"stop_token_ids": [5]}, ([1, 5], "stop", 5)),
        ([EOS], {"stop_token_ids": [EOS]}, ([EOS], "stop", None)),
        ([1, EOS, 2, 3], {"ignore_eos": True}, ([1, EOS, 2, 3], "length", None)),
        ([1, EOS], {"ignore_eos": True, "stop_token_ids": [EOS]}, ([1, EOS], "stop", EOS)),
        ([EOS, 1, 5, EOS], {"min_tokens": 4, "stop_token_ids": [5]}, ([EOS, 1, 5, EOS], "stop", None)),
        ([EOS, 1, EOS], {"min_tokens": 3}, ([EOS, 1, EOS], "stop", None)),
        ([1, 2], {"max_model_len": 5, "max_tokens": 50, "min_tokens": 40}, ([1, 2], "length", None)),
        ([1, 2], {"max_model_len": 5, "max_tokens": None}, ([1, 2], "length", None)),
        ([1, EOS], {"max_model_len": 5}, ([1, EOS], "stop", None)),
    ],
)
def test_end_of_sequence_then_stop_ids_then_length_but_nothing_before_min_tokens(says, options, told):
    assert scripted(says, **options) == told


def test_of_several_tokens_those_after_the_end_are_dropped_with_their_logprobs():
    scheduler = new_scheduler(cache(32))
    scheduler.add(new_request("r", [1, 2, 3], stop_token_ids=[5], max_tokens=10, logprobs=0))
    entries = tuple(TokenLogprobs(token_ids=(t,), logprobs=(-1.0,), rank=1) for t in (4, 5, 6))
    result = ModelRunnerOutput(sampled_token_ids={"r": (4, 5, 6)}, logprobs={"r": entries})
    (output,) = scheduler.update_from_output(scheduler.schedule(), result)
    assert output.new_token_ids == (4, 5)
    assert output.new_logprobs == entries[:2]
    assert (output.finish_reason, output.stop_reason) == ("stop", 5)


def test_an_end_gives_the_blocks_back_and_leaves_them_findable():
    served = Served(new_scheduler(cache(16)))
    served.add(new_request("a", range(7), max_tokens=3))
    served.finish()
    assert served.scheduler.kv.usage == 0
    longer = [*range(7), *answer(range(7), 3), 1]
    served.add(new_request("b", longer))
    served.step()
    # 9 of a's 10 tokens were computed, its last answer never was: two full blocks.
    assert served.scheduler.stats().num_cached_tokens == 8


@pytest.mark.parametrize("sampled", [{}, {"r": ()}])
def test_a_runner_that_owes_a_token_is_found_out(sampled):
    scheduler = new_scheduler(cache(16))
    scheduler.add(new_request("r", range(5)))
    with pytest.raises(HeadstockError, match="request r: the model runner gave 0 tokens after computing 5 of 5"):
        scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput(sampled_token_ids=sampled))


def test_a_runner_that_samples_amid_a_prompt_is_found_out():
    scheduler = new_scheduler(cache(16), max_num_batched_tokens=8)
    scheduler.add(new_request("r", range(10)))
    with pytest.raises(HeadstockError, match="gave 1 tokens after computing 8 of 10"):
        scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput(sampled_token_ids={"r": (1,)}))


class TestFailure:
    """A request for which no token could be sampled ends alone."""

    def test_it_ends_with_its_reason_and_the_others_go_on(self):
        served = Served(new_scheduler(cache(16)))
        served.add(new_request("bad", range(6)), new_request("good", range(20, 26)))
        served.fail("bad", "no token is allowed")
        served.finish()
        assert served.answers["bad"].tokens == []
        assert served.answers["bad"].finish_reason == "error"
        assert served.answers["bad"].last.error == "no token is allowed"
        assert served.answers["good"].tokens == answer(range(20, 26), 4)

    def test_amid_a_prompt(self):
        served = Served(new_scheduler(cache(16), max_num_batched_tokens=8))
        served.add(new_request("bad", range(20)))
        served.fail("bad", "broken")
        assert served.answers["bad"].finish_reason == "error"
        assert not served.scheduler.has_unfinished

    def test_tokens_beside_a_failure_are_dropped(self):
        scheduler = new_scheduler(cache(16))
        scheduler.add(new_request("r", range(6)))
        result = ModelRunnerOutput(sampled_token_ids={"r": (1,)}, failures={"r": "broken"})
        (output,) = scheduler.update_from_output(scheduler.schedule(), result)
        assert (output.new_token_ids, output.finish_reason, output.error) == ((), "error", "broken")

    def test_nobody_finds_what_it_computed(self):
        served = Served(new_scheduler(cache(16)))
        served.add(new_request("bad", range(9)))
        served.fail("bad", "broken")
        served.add(new_request("again", range(9)))
        served.finish()
        assert served.answers["again"].last.num_cached_tokens == 0
        assert served.answers["again"].tokens == answer(range(9), 4)

    def test_who_shares_its_prefix_goes_on_and_fills_more_blocks(self):
        served = Served(new_scheduler(cache(32)))
        served.add(new_request("bad", range(8), max_tokens=9), new_request("good", [*range(8), 1], max_tokens=12))
        served.step()
        served.fail("bad", "broken")
        served.finish()
        assert served.answers["good"].tokens == answer([*range(8), 1], 12)
        served.add(new_request("again", [*range(8), 1], max_tokens=12))
        served.finish()
        assert served.answers["again"].tokens == answer([*range(8), 1], 12)


class TestAbort:
    def serve_three(self):
        """One that runs, one that waits, and one that was preempted."""
        served = Served(new_scheduler(cache(9)))
        served.add(new_request("runs", range(12), max_tokens=12), new_request("gone", range(50, 62), max_tokens=12))
        for _ in range(6):
            served.step()
        assert served.scheduler.stats().num_preemptions == 1
        served.add(new_request("waits", range(80, 88)))
        return served

    @pytest.mark.parametrize("name", ["runs", "waits", "gone"])
    def test_in_any_state(self, name):
        served = self.serve_three()
        (output,) = served.scheduler.abort([name])
        assert (output.request_id, output.finish_reason, output.new_token_ids) == (name, "abort", ())
        check_laws(served.scheduler)
        del served.answers[name]
        served.finish()
        prompts = {"runs": (range(12), 12), "gone": (range(50, 62), 12), "waits": (range(80, 88), 4)}
        for other, told in served.answers.items():
            assert told.tokens == answer(*prompts[other])

    def test_twice_and_of_strangers_is_nothing(self):
        served = self.serve_three()
        assert len(served.scheduler.abort(["runs", "runs", "stranger"])) == 1
        assert served.scheduler.abort(["runs"]) == []
        check_laws(served.scheduler)

    def test_all_leaves_nothing(self):
        served = self.serve_three()
        served.scheduler.abort(["runs", "waits", "gone"])
        assert not served.scheduler.has_unfinished
        assert served.scheduler.kv.usage == 0
        assert served.step().finished_request_ids == ("runs",)
        assert served.runner.held == {}

    def test_while_the_step_runs_drops_its_result(self):
        served = Served(new_scheduler(cache(16)))
        served.add(new_request("a", range(5)), new_request("b", range(20, 25)))
        step = served.scheduler.schedule()
        result = served.runner.run(step)
        served.scheduler.abort(["a"])
        outputs = served.scheduler.update_from_output(step, result)
        assert [output.request_id for output in outputs] == ["b"]
        assert served.scheduler.schedule().finished_request_ids == ("a",)

    def test_and_the_same_id_again_while_the_step_runs_gets_nothing_of_it(self):
        served = Served(new_scheduler(cache(16)))
        served.add(new_request("a", range(5)))
        step = served.scheduler.schedule()
        result = served.runner.run(step)
        served.scheduler.abort(["a"])
        served.add(new_request("a", range(30, 35)))
        assert served.scheduler.update_from_output(step, result) == []
        served.finish()
        assert served.answers["a"].tokens == answer(range(30, 35), 4)

    def test_amid_a_prompt(self):
        served = Served(new_scheduler(cache(16), max_num_batched_tokens=8))
        served.add(new_request("a", range(30)))
        served.step()
        served.scheduler.abort(["a"])
        check_laws(served.scheduler)
        assert served.scheduler.kv.usage == 0
