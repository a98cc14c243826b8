"""Memory that is refused in the middle of a step: once with half the tokens, then only that step's requests end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headstock.core.engine import EngineCore, InprocClient
from headstock.core.model import ModelFolder
from headstock.core.scheduler import EngineRequest, ModelRunnerOutput, SchedulerOutput
from support.lives import Fates, request, run
from support.tiny import tiny_core, tiny_folder

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], list(range(100, 117)), [5, 9, 13, 200, 201]]
REFUSALS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to …"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(folder: ModelFolder) -> Fates:
    return run(InprocClient(tiny_core(folder)), requests())


def requests() -> list[EngineRequest]:
    return [
        request(f"r{i}", prompt, **({"temperature": 1.0, "seed": i} if i % 2 else {}))
        for i, prompt in enumerate(PROMPTS)
    ]


def refuse(core: EngineCore, when: Callable[[int, SchedulerOutput], Exception | None]) -> list[int]:
    """Let steps raise after they were computed, by their number; returns the tokens of all steps that were tried."""
    execute, tried = core.worker.execute_model, list[int]()

    def execute_model(output: SchedulerOutput) -> ModelRunnerOutput:
        tried.append(output.total_num_scheduled_tokens)
        error = when(len(tried) - 1, output)
        result = execute(output)
        if error is not None:
            raise error
        return result

    core.worker.execute_model = execute_model
    return tried


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", [0, 3])
def test_a_step_is_tried_again_with_half_the_tokens_and_nothing_is_lost(
    folder: ModelFolder, expected: Fates, error: Exception, at: int, overlapped: bool
) -> None:
    core = tiny_core(folder, block_size=4, async_scheduling=overlapped)
    tried = refuse(core, lambda number, _: error if number == at else None)
    assert run(InprocClient(core), requests()) == expected
    assert tried[at + 1] == max(1, tried[at] // 2)
    assert core.stats().num_preemptions > 0
    assert core.stats().kv_usage == 0


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "async"])
def test_where_it_is_refused_twice_only_that_steps_requests_end(
    folder: ModelFolder, expected: Fates, overlapped: bool
) -> None:
    core = tiny_core(folder, block_size=4, async_scheduling=overlapped)
    victims: set[str] = set()

    def when(number: int, output: SchedulerOutput) -> Exception | None:
        if number == 3:
            victims.update(output.num_scheduled_tokens)
        return REFUSALS[0] if number in (2, 3) else None

    refuse(core, when)
    fates = run(InprocClient(core), requests())
    assert victims
    assert {name for name, (_, reason) in fates.items() if reason == "error"} == victims
    assert len(victims) < len(PROMPTS)
    assert all(fates[name] == expected[name] for name in fates.keys() - victims)
    assert core.stats().kv_usage == 0
    again = run(InprocClient(core), [request(f"again{i}", prompt) for i, prompt in enumerate(PROMPTS)])
    fresh = run(InprocClient(tiny_core(folder)), [request(f"again{i}", prompt) for i, prompt in enumerate(PROMPTS)])
    assert again == fresh  # nothing that was broken off is found in the cache


def test_what_is_no_refusal_of_memory_is_not_tried_again(folder: ModelFolder) -> None:
    core = tiny_core(folder)
    tried: Any = refuse(core, lambda number, _: RuntimeError("misaligned address"))
    client = InprocClient(core)
    client.add_request(request("a", [1]))
    with pytest.raises(RuntimeError, match="misaligned"):
        client.get_outputs()
    assert len(tried) == 1
