"""Configuration, states and queues."""

from __future__ import annotations

import pytest

from headstock.core.errors import InvalidInput
from headstock.core.scheduler import Request, RequestStatus, SchedulerConfig
from headstock.core.scheduler.queue import QUEUES
from support.scheduling import new_request

FINISHED = [status for status in RequestStatus if status.is_finished]
LIVE = [status for status in RequestStatus if not status.is_finished]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 1),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", 0),
        ("policy", "lottery"),
        ("long_prefill_token_threshold", -1),
        ("watermark", 1.0),
        ("watermark", -0.1),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field, value):
    settings = {"max_model_len": 64, "max_num_batched_tokens": 64, "max_num_seqs": 8, field: value}
    with pytest.raises(InvalidInput) as raised:
        SchedulerConfig(**settings)
    assert raised.value.field == field


def test_there_are_twelve_states_of_which_six_are_final():
    assert len(RequestStatus) == 12
    assert [status.name for status in FINISHED] == [
        "FINISHED_STOPPED",
        "FINISHED_LENGTH_CAPPED",
        "FINISHED_ABORTED",
        "FINISHED_IGNORED",
        "FINISHED_ERROR",
        "FINISHED_REPETITION",
    ]


WAYS = {
    "WAITING": {"RUNNING", "WAITING_FOR_REMOTE_KVS"},
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": {"WAITING"},
    "WAITING_FOR_REMOTE_KVS": {"WAITING", "PREEMPTED"},
    "WAITING_FOR_STREAMING_REQ": {"WAITING"},
    "RUNNING": {"PREEMPTED", "WAITING_FOR_STREAMING_REQ"},
    "PREEMPTED": {"RUNNING", "WAITING_FOR_REMOTE_KVS"},
}


@pytest.mark.parametrize("status", LIVE)
def test_a_live_request_goes_these_ways_and_may_always_finish(status):
    ways = {other.name for other in LIVE if status.can_become(other)}
    assert ways == WAYS[status.name]
    assert all(status.can_become(other) for other in FINISHED)
    assert status.finish_reason is None


@pytest.mark.parametrize("status", FINISHED)
def test_a_finished_request_goes_nowhere_and_has_a_reason(status):
    assert not any(status.can_become(other) for other in RequestStatus)
    assert status.finish_reason in {"stop", "length", "abort", "error"}


def request(name="r", order=0, **options):
    return Request(new_request(name, [1, 2], **options), chains=(), order=order, max_model_len=16)


def test_an_illegal_way_is_an_error_that_names_both_ends():
    with pytest.raises(ValueError, match="r is WAITING and cannot become PREEMPTED"):
        request().preempt()


@pytest.mark.parametrize(("max_tokens", "most"), [(3, 3), (None, 14)])
def test_without_a_limit_a_request_may_go_on_to_the_models_length(max_tokens, most):
    assert request(max_tokens=max_tokens).max_tokens == most


@pytest.fixture(params=["fcfs", "priority"])
def queue(request):
    return QUEUES[request.param]()


def names(queue):
    order = []
    while queue:
        assert queue.peek() is next(iter(queue))
        order.append(queue.pop().request_id)
    return "".join(order)


def test_both_queues_keep_the_order_of_arrival(queue):
    for order, name in enumerate("abcd"):
        queue.add(request(name, order))
    assert names(queue) == "abcd"


def test_removal_from_the_middle(queue):
    for order, name in enumerate("abcd"):
        queue.add(request(name, order))
    queue.remove("a")
    queue.remove("c")
    assert "a" not in queue
    assert "b" in queue
    assert len(queue) == 2
    assert names(queue) == "bd"
    with pytest.raises(KeyError):
        queue.remove("a")
    with pytest.raises(LookupError):
        queue.pop()


def test_a_name_that_comes_back_has_its_new_place(queue):
    for order, name in enumerate("abc"):
        queue.add(request(name, order))
    queue.remove("a")
    queue.add(request("a", 3))
    assert names(queue) == "bca"


def test_first_come_first_served_but_preempted_ones_first():
    queue = QUEUES["fcfs"]()
    queue.add(request("c", 2))
    queue.restore(request("b", 1))
    queue.restore(request("a", 0))
    assert names(queue) == "abc"


def test_priority_then_arrival_then_order():
    queue = QUEUES["priority"]()
    queue.add(request("d", 0, priority=1))
    queue.add(request("c", 1, arrival_time=5.0))
    queue.add(request("b", 3))
    queue.add(request("a", 2))
    queue.restore(request("0", 4, priority=-1))
    assert [waiting.request_id for waiting in queue] == list("0abcd")
    assert names(queue) == "0abcd"


def test_removed_requests_do_not_pile_up():
    queue = QUEUES["priority"]()
    queue.add(request("kept", 0, priority=9))
    for order in range(1, 1000):
        queue.add(request(str(order), order, priority=10))
        queue.remove(str(order))
    assert len(queue._heap) < 100
    assert names(queue) == "kept"
