"""What is refused at once, and what may wait."""

from __future__ import annotations

import logging
import struct

import pytest

from headstock.core.errors import CapacityError, InvalidInput
from headstock.core.params import SamplingParams
from headstock.core.scheduler import EngineRequest
from support.scheduling import Served, answer, cache, new_request, new_scheduler


@pytest.mark.parametrize(("length", "fits"), [(15, True), (16, False), (17, False)])
@pytest.mark.parametrize("max_tokens", [1, None])
def test_a_prompt_and_one_token_must_fit_the_models_length(length, fits, max_tokens):
    served = Served(new_scheduler(cache(64), max_model_len=16))
    request = new_request("r", range(length), max_tokens=max_tokens)
    if fits:
        served.add(request)
        served.finish()
        assert served.answers["r"].tokens == answer(range(length), 1)
        assert served.answers["r"].finish_reason == "length"
    else:
        with pytest.raises(InvalidInput, match=f"prompt: has {length} tokens.*max_model_len=16.*at most 15 tokens"):
            served.add(request)
        assert not served.scheduler.has_unfinished


def test_no_tokens_cannot_be_asked_for():
    with pytest.raises(InvalidInput, match="max_tokens"):
        new_request("r", range(15), max_tokens=0)


def test_fifty_bad_requests_leave_nothing_behind_and_hurt_nobody():
    served = Served(new_scheduler(cache(64), max_model_len=16))
    for i in range(50):
        with pytest.raises(InvalidInput):
            served.add(new_request(f"bad {i}", range(16 + i % 3)))
        served.add(new_request(f"good {i}", range(i % 11, i % 11 + 5)))
    assert served.scheduler.stats().num_waiting == 50
    served.finish()
    for i in range(50):
        assert served.answers[f"good {i}"].tokens == answer(range(i % 11, i % 11 + 5), 4)
    assert served.scheduler.kv.usage == 0


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidInput, match="prompt: is empty"):
        new_scheduler(cache(8)).add(new_request("r", []))


def test_several_completions_are_fanned_out_before():
    request = EngineRequest(request_id="r", prompt_token_ids=(1,), params=SamplingParams(n=2))
    with pytest.raises(InvalidInput, match=r"n: .*one completion"):
        new_scheduler(cache(8)).add(request)


def test_the_id_of_a_live_request_is_refused_and_free_again_after_its_end():
    served = Served(new_scheduler(cache(8)))
    served.add(new_request("r", [1, 2]))
    with pytest.raises(InvalidInput, match="request_id: 'r'"):
        served.scheduler.add(new_request("r", [3, 4]))
    served.finish()
    served.add(new_request("r", [3, 4]))
    served.finish()
    assert served.answers["r"].tokens == answer([3, 4], 4)


def test_a_token_id_that_cannot_be_hashed_leaves_nothing_behind():
    scheduler = new_scheduler(cache(8))
    with pytest.raises(struct.error):
        scheduler.add(new_request("r", [1, 2, 3, 2**70]))
    assert not scheduler.has_unfinished


def test_a_prompt_larger_than_the_cache_is_refused_and_the_next_one_is_served():
    served = Served(new_scheduler(cache(8), max_model_len=64))
    with pytest.raises(
        CapacityError, match=r"40 tokens and one more need 11 KV blocks, and the cache has 7 \(28 tokens"
    ):
        served.add(new_request("large", range(40)))
    served.add(new_request("small", range(4)))
    served.finish()
    assert served.answers["small"].tokens == answer(range(4), 4)


def test_a_request_that_outgrows_the_cache_ends_there_with_a_reason(caplog):
    served = Served(new_scheduler(cache(8), max_model_len=64))
    served.add(new_request("r", range(20), max_tokens=40))
    with caplog.at_level(logging.WARNING):
        steps = served.finish()
    # 28 tokens fit; the 29th is sampled from them and needs no room.
    assert served.answers["r"].tokens == answer(range(20), 9)
    assert served.answers["r"].finish_reason == "length"
    assert len(steps) == 9
    assert served.scheduler.stats().num_preemptions == 0
    assert "request r ends with 29 of 60 tokens: the KV cache holds no more" in caplog.text


def test_two_that_outgrow_the_cache_together_both_reach_its_end():
    served = Served(new_scheduler(cache(8), max_model_len=64))
    served.add(new_request("a", range(12), max_tokens=40), new_request("b", range(50, 62), max_tokens=40))
    served.finish()
    assert served.answers["a"].tokens == answer(range(12), 17)
    assert served.answers["b"].tokens == answer(range(50, 62), 17)
    assert served.scheduler.stats().num_preemptions > 0


def test_a_request_that_ends_by_itself_warns_of_nothing(caplog):
    served = Served(new_scheduler(cache(8), max_model_len=12))
    served.add(new_request("r", range(8)), new_request("s", range(8), max_tokens=None))
    served.finish()
    assert caplog.text == ""


def test_the_longest_request_that_fits_is_admitted_and_never_preempted():
    """At the fitted maximum length one block more than exists would be needed if the null block were counted."""
    kv = cache(8)
    served = Served(new_scheduler(kv, max_model_len=kv.config.fit(1000)))
    served.add(new_request("r", range(27), max_tokens=None))
    served.finish()
    assert served.answers["r"].tokens == answer(range(27), 1)
    assert served.scheduler.stats().num_preemptions == 0
