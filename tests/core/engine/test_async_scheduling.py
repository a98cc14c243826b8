"""The next step is scheduled while one is computed: same tokens, same ends, nothing left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstock.core.engine import EngineCore, InprocClient
from headstock.core.model import ModelFolder
from headstock.core.sampling import Sampler
from headstock.core.scheduler import EngineRequest, ModelRunnerOutput, SchedulerOutput
from headstock.core.scheduler.output import EngineCoreOutput
from support.lives import Fates, gather, request, run
from support.tiny import tiny_core, tiny_folder

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], list(range(100, 117)), [5, 9, 13, 200, 201]]
Trace = dict[str, tuple[EngineCoreOutput, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def small_cache(folder: ModelFolder, blocks: int, **config: Any) -> EngineCore:
    """A core with so many blocks of four tokens."""
    total = sum(group.bytes_per_block for group in tiny_core(folder, block_size=4).kv_config.groups)
    return tiny_core(folder, block_size=4, kv_cache_memory_bytes=blocks * total, **config)


WORKLOADS = st.lists(
    st.tuples(
        st.sampled_from(range(len(PROMPTS))),
        st.integers(1, 10),  # max_tokens
        st.sampled_from([None, 0, 1]),  # seed; None is greedy
        st.booleans(),  # penalties
        st.booleans(),  # prompt_logprobs
        st.integers(0, 6),  # the step before which it comes
        st.sampled_from([None, None, 1, 3, 6]),  # steps after which it is aborted
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=WORKLOADS, stop=st.sampled_from([(), (95, 117, 129)]), tight=st.booleans())
def test_it_changes_no_outcome(
    cores: dict[tuple[bool, bool], EngineCore], work: list[Any], stop: tuple[int, ...], tight: bool
) -> None:
    plain, ahead = (serve(cores[tight, overlapped], work, stop) for overlapped in (False, True))
    aborted = {f"r{number}" for number, entry in enumerate(work) if entry[-1] is not None}
    for name, (tokens, reason) in plain.items():
        if name in aborted:
            shorter, longer = sorted((tokens, ahead[name][0]), key=len)
            assert longer[: len(shorter)] == shorter
        else:
            assert ahead[name] == (tokens, reason)
    assert ahead.keys() == plain.keys()


@pytest.fixture(scope="module")
def cores(folder: ModelFolder) -> dict[tuple[bool, bool], EngineCore]:
    """With and without memory to spare, with and without overlap."""
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    return {
        (tight, overlapped): small_cache(folder, 14 if tight else 60, async_scheduling=overlapped, **options)
        for tight in (False, True)
        for overlapped in (False, True)
    }


def serve(core: EngineCore, work: list[Any], stop: tuple[int, ...]) -> Fates:
    """The fates of `work`, with the prompt's log probabilities as tokens of their own."""
    core.reset_prefix_cache()
    fates: Fates = {}
    scored: dict[str, int] = {}
    coming = {f"r{number}": entry for number, entry in enumerate(work)}
    for turn in range(500):
        for name, (prompt, max_tokens, seed, penalties, scores, begin, end) in coming.items():
            if turn == begin:
                core.add_request(_request(name, prompt, max_tokens, seed, penalties, scores, stop))
            if end is not None and turn == begin + end:
                gather(core.abort_requests([name]), fates)
        for output in core.step():
            scored[output.request_id] = scored.get(output.request_id, 0) + len(output.new_prompt_logprobs)
            gather([output], fates)
        if turn > 12 and not core.can_step:
            break
    assert not core.has_unfinished_requests()
    assert core.stats().kv_usage == 0
    for name, (_, reason) in fates.items():
        prompt, scores = PROMPTS[coming[name][0]], coming[name][4]
        assert reason == "abort" or scored.get(name, 0) == (len(prompt) - 1 if scores else 0)
    return fates


def _request(
    name: str, prompt: int, max_tokens: int, seed: int | None, penalties: bool, scores: bool, stop: tuple[int, ...]
) -> EngineRequest:
    return request(
        name,
        PROMPTS[prompt],
        max_tokens=max_tokens,
        stop_token_ids=stop,
        prompt_logprobs=1 if scores else None,
        frequency_penalty=1.0 if penalties else 0.0,
        **({} if seed is None else {"temperature": 1.0, "seed": seed}),
    )


def test_preemption_happens_in_these_workloads_and_changes_nothing(folder: ModelFolder) -> None:
    requests = [request(f"r{i}", prompt, max_tokens=12) for i, prompt in enumerate(PROMPTS)]
    plain = run(InprocClient(tiny_core(folder)), requests)
    core = small_cache(folder, 14, async_scheduling=True, enable_prefix_caching=False)
    assert run(InprocClient(core), requests) == plain
    assert core.stats().num_preemptions > 0


def test_a_step_is_scheduled_while_the_one_before_is_computed(folder: ModelFolder) -> None:
    core = tiny_core(folder, async_scheduling=True)
    entered, leave = threading.Event(), threading.Event()
    execute, schedule = core.worker.execute_model, core.scheduler.schedule
    seen: list[bool] = []

    def slow(output: SchedulerOutput) -> ModelRunnerOutput:
        entered.set()
        assert leave.wait(60)
        return execute(output)

    def watched(*args: Any) -> SchedulerOutput:
        seen.append(entered.is_set() and not leave.is_set())
        output = schedule(*args)
        if seen[-1]:
            leave.set()  # had the step to be finished first, nobody would ever let it
        return output

    core.worker.execute_model, core.scheduler.schedule = slow, watched
    client = InprocClient(core)
    client.add_request(request("a", [1, 2, 3]))
    assert client.get_outputs() == []
    assert entered.wait(60)
    assert len(run(client)["a"][0]) == 8
    assert seen[:2] == [False, True]


def test_a_row_that_fails_ends_alone_though_its_next_step_was_scheduled(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = tiny_core(folder, async_scheduling=True)
    sample = Sampler.__call__
    calls = []

    def broken(self: Sampler, logits: Any, slots: Any, positions: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            logits = logits.clone()
            logits[0] = float("nan")
        return sample(self, logits, slots, positions)

    monkeypatch.setattr(Sampler, "__call__", broken)
    fates = run(InprocClient(core), [request("bad", [5, 9, 13]), request("good", [7] * 20)])
    assert (len(fates["bad"][0]), fates["bad"][1]) == (2, "error")
    assert (len(fates["good"][0]), fates["good"][1]) == (8, "length")
    assert core.stats().kv_usage == 0


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_step_that_raises_ends_its_requests_and_those_of_the_next(folder: ModelFolder, at: int) -> None:
    core = tiny_core(folder, async_scheduling=True, block_size=4)
    expected = run(InprocClient(tiny_core(folder)), [request("a", [5, 9, 13])])["a"]
    execute, count = core.worker.execute_model, [0]

    def failing(output: SchedulerOutput) -> ModelRunnerOutput:
        count[0] += 1
        if count[0] == at:
            raise RuntimeError("kernel launch failed")
        return execute(output)

    core.worker.execute_model = failing
    client = InprocClient(core)
    fates: Fates = {}
    for i, prompt in enumerate(PROMPTS):
        client.add_request(request(f"r{i}", prompt))
    raised = 0
    while client.has_unfinished_requests():
        try:
            gather(client.get_outputs(), fates)
        except RuntimeError:
            raised += 1
    assert raised == 1
    assert {reason for _, reason in fates.values()} == {"error"}
    assert core.stats().kv_usage == 0
    assert run(client, [request("again", [5, 9, 13])])["again"] == expected


def test_it_sleeps_only_after_landing(folder: ModelFolder) -> None:
    client = InprocClient(tiny_core(folder, async_scheduling=True))
    client.add_request(request("a", range(100)))
    client.get_outputs()
    client.abort_requests(["a"])
    client.sleep(2)
    client.wake_up()
    assert len(run(client, [request("b", [1])])["b"][0]) == 8
    client.close()


@pytest.mark.parametrize("gone", ["aborted", "preempted"])
def test_what_a_broken_step_was_to_compute_is_not_found_though_its_owner_had_gone(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    core = tiny_core(folder, async_scheduling=True, block_size=4)
    prompt = [(7 * i + 3) % 250 for i in range(40)]
    expected = run(InprocClient(tiny_core(folder)), [request("a", prompt)])["a"]

    def broken(output: SchedulerOutput) -> ModelRunnerOutput:
        raise RuntimeError("kernel launch failed")

    client = InprocClient(core)
    with monkeypatch.context() as patch:
        patch.setattr(core.worker, "execute_model", broken)
        client.add_request(request("first", prompt))
        assert client.get_outputs() == []  # its step is on the way, and its blocks can be found
        if gone == "aborted":
            client.abort_requests(["first"])
        else:
            core.scheduler._take_back(core.scheduler._running["first"])
        with pytest.raises(RuntimeError):
            client.get_outputs()
    core.abort_requests(["first"])
    client.add_request(request("again", prompt))
    outputs = run(client)
    assert outputs["again"] == expected
