"""Random traffic through the scheduler: the laws after each step, and the answers that each request would get alone."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headstock.core.errors import CapacityError, InvalidInput
from headstock.core.kv import BlockHasher
from support.scheduling import Served, answer, cache, check_laws, kv_config, new_request, new_scheduler

SHARED = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1]
SHAPES = [(1,), (2,), (4,), (2, 4), (2, 3)]
SHAPES += [((2, 3),), (2, (2, 5)), ((1, 6), 2), (4, (2, 3), (2, 9))]
"""Block sizes of the groups, or those and windows."""
wishes = st.fixed_dictionaries(
    {
        "shared": st.integers(0, 12),
        "own": st.lists(st.integers(0, 1), max_size=6),
        "max_tokens": st.integers(1, 16),
        "eos": st.booleans(),
        "priority": st.integers(0, 2),
        "salt": st.sampled_from([None, None, "a"]),
        "logprobs": st.booleans(),
    }
)
"""What a request is made of; prompts share prefixes, so that they meet in the cache."""


class Traffic(RuleBasedStateMachine):
    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes

    @initialize(
        capacity=st.integers(6, 48),
        caching=st.sampled_from([True, True, False]),
        collide=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
        seats=st.integers(2, 6),
        budget=st.integers(2, 24),
        threshold=st.sampled_from([0, 0, 1, 3]),
        watermark=st.sampled_from([0.0, 0.0, 0.2]),
    )
    def start(self, capacity, caching, collide, policy, seats, budget, threshold, watermark):
        step = min(budget, threshold or budget)
        num_blocks = 1 + kv_config(2, self.shapes, max_step_tokens=step).blocks_for(capacity)
        hasher = BlockHasher(lambda parent, token_ids, extra: b"") if collide else None
        kv = cache(num_blocks, self.shapes, enable_prefix_caching=caching, hasher=hasher, max_step_tokens=step)
        scheduler = new_scheduler(
            kv,
            policy=policy,
            max_model_len=40,
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            watermark=watermark,
        )
        self.served = Served(scheduler)
        self.expected = {}
        self.number = 0

    @rule(several=st.lists(wishes, min_size=1, max_size=5))
    def add(self, several):
        for wish in several:
            self.number += 1
            self.add_one(str(self.number), **wish)

    def add_one(self, name, *, shared, own, max_tokens, eos, priority, salt, logprobs):
        prompt = SHARED[:shared] + own
        eos_ids = tuple(range(0, 50, 9)) if eos else ()
        wanted = {"prompt_logprobs": 0, "logprobs": 0} if logprobs else {}
        request = new_request(
            name,
            prompt,
            max_tokens=max_tokens,
            eos_token_ids=eos_ids,
            priority=priority,
            cache_salt=salt,
            arrival_time=float(self.number // 2),
            **wanted,
        )
        capacity = self.served.scheduler.kv.max_tokens
        try:
            self.served.add(request)
        except InvalidInput:
            assert not 1 <= len(prompt) <= 39
            return
        except CapacityError:
            assert len(prompt) + 1 > capacity
            return
        assert 1 <= len(prompt) <= min(39, capacity - 1)
        most = min(max_tokens, 40 - len(prompt), capacity + 1 - len(prompt))
        self.expected[name] = answer(prompt, most, eos_ids), len(prompt) - 1 if logprobs else 0

    def owed(self):
        return [name for name, told in self.served.answers.items() if told.finish_reason is None]

    @rule(steps=st.integers(1, 8))
    def step(self, steps):
        for _ in range(steps):
            self.served.step()
        self.check_finished()

    @rule(data=st.data(), amid=st.booleans())
    def abort(self, data, amid):
        if not self.owed():
            return
        name = data.draw(st.sampled_from(self.owed()), label="request")
        scheduler = self.served.scheduler
        step = scheduler.schedule() if amid else None
        (output,) = scheduler.abort([name, name])
        assert output.finish_reason == "abort"
        self.served.tell([output])
        check_laws(scheduler)
        if step is not None:
            self.served.tell(scheduler.update_from_output(step, self.served.runner.run(step)))
        told = self.served.answers[name].tokens
        assert told == self.expected[name][0][: len(told)]
        assert scheduler.abort([name]) == []

    @rule(data=st.data())
    def fail(self, data):
        if not self.owed():
            return
        self.served.fail(data.draw(st.sampled_from(self.owed()), label="request"), "broken")
        self.check_finished()

    @rule()
    def reset(self):
        self.served.scheduler.reset_prefix_cache()

    def check_finished(self):
        for name, told in self.served.answers.items():
            tokens, num_prompt_logprobs = self.expected[name]
            assert told.tokens == tokens[: len(told.tokens)]
            if told.finish_reason in ("stop", "length"):
                assert told.tokens == tokens
                assert len(told.prompt_logprobs) == num_prompt_logprobs

    def teardown(self):
        if hasattr(self, "served"):
            self.served.finish()
            self.check_finished()
            assert self.served.scheduler.kv.usage == 0
            assert all(told.finish_reason for told in self.served.answers.values())


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_traffic(shapes):
    run_state_machine_as_test(lambda: Traffic(shapes), settings=settings(max_examples=25, stateful_step_count=30))
