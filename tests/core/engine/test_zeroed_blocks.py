"""Blocks change hands: though a kernel multiplies what lies behind a row's last key by 0, no NaN reaches the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Capabilities, Device, by_phase, subdivided
from headstock.core.engine import EngineCore, LLMEngine
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from support.engine import FixedProvider
from support.graphs import Gathering, Recorder
from support.lives import Fates, gather, request
from support.serving import answers, tokens
from support.tiny import tiny_core, tiny_engine, tiny_folder

FIRST, SECOND = list(range(40, 60)), [5, 9, 13, 200, 201]
PARAMS = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def right(folder: ModelFolder) -> tuple[int, ...]:
    return tokens(answers(tiny_engine(folder), [SECOND], PARAMS))[0]


class Tails:
    """A kernel that loads the blocks of a row whole: what lies behind its last key weighs 0, and 0 times NaN is NaN.

    Its keys and values are NaN while `failing`, as of a model whose activations overflow.
    """

    failing = False

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return replace(super().capabilities(device), needs_zeroed_cache=True)  # pyright: ignore

    def write_kv(self, layer, key, value, kv_cache, slot_mapping):
        if Tails.failing:
            key, value = key * float("nan"), value * float("nan")
        super().write_kv(layer, key, value, kv_cache, slot_mapping)  # pyright: ignore

    def forward(self, layer, query, *, kv_cache, plan, out, **others):
        super().forward(layer, query, kv_cache=kv_cache, plan=plan, out=out, **others)  # pyright: ignore
        size = kv_cache.block_size
        for row, length in enumerate(plan.seq_lens[: plan.num_reqs].tolist()):
            start, end = plan.tokens(row, row + 1)
            slots = (plan.block_table[row].long()[:, None] * size + torch.arange(size)).flatten()
            for plane in kv_cache.planes.values():
                out[start:end] += 0 * kv_cache.layout.gather_rows(plane, slots[length:], size).sum()


class Leaking(Tails, ReferenceBackend):
    pass


class LeakingGraph(Tails, Gathering):
    pass


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(Tails, "failing", True)
    return monkeypatch


def outlive_a_failure(engine: LLMEngine, patch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """What the second request answers, in blocks that the first, which failed, has left."""
    (failed,) = answers(engine, [FIRST], PARAMS)
    assert "NaN" in (failed.outputs[0].error or "")
    patch.setattr(Tails, "failing", False)
    return tokens(answers(engine, [SECOND], PARAMS))[0]


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_failed_request_left_reaches_nobody(
    folder: ModelFolder, right: tuple[int, ...], failing: pytest.MonkeyPatch, layout: str, ahead: bool
) -> None:
    # Layers of two KV groups, one of them with a window.
    engine = tiny_engine(folder, FixedProvider(Leaking, layout), block_size=8, async_scheduling=ahead)
    assert outlive_a_failure(engine, failing) == right


def test_nor_does_it_through_a_recorded_graph(
    folder: ModelFolder, right: tuple[int, ...], failing: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    failing.setattr("headstock.core.worker.worker.recorder_for", lambda device: recorder)
    engine = tiny_engine(folder, FixedProvider(LeakingGraph), block_size=8)
    assert outlive_a_failure(engine, failing) == right
    assert recorder.num_replays > 0


@pytest.mark.parametrize(
    "cls", [by_phase(Leaking, ReferenceBackend), subdivided(Leaking, 4)], ids=["one part", "divided blocks"]
)
def test_nor_through_a_backend_inside_another(folder: ModelFolder, right: tuple[int, ...], cls: Any) -> None:
    engine = tiny_engine(folder, FixedProvider(cls), block_size=8)
    poison_free_blocks(engine.core)
    assert tokens(answers(engine, [SECOND], PARAMS))[0] == right


def test_nor_where_only_some_layers_need_it(
    folder: ModelFolder, right: tuple[int, ...], failing: pytest.MonkeyPatch
) -> None:
    # What another layer leaves behind in the memory that it shares with this one counts as well.
    def pick(name: str) -> type[ReferenceBackend]:
        return Leaking if ".0." in name else Poisonous

    assert outlive_a_failure(tiny_engine(folder, FixedProvider(pick), block_size=8), failing) == right


class Poisonous(Tails, ReferenceBackend):
    """Leaves NaN, and does not mind it."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return ReferenceBackend.capabilities(device)

    def forward(self, *arguments, **keywords):
        ReferenceBackend.forward(self, *arguments, **keywords)


def test_blocks_are_zeroed_for_those_only_who_need_it(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[list[int]] = []
    fill = torch.Tensor.index_fill_

    def watched(self: torch.Tensor, dim: int, index: torch.Tensor, value: float) -> torch.Tensor:
        filled.append(sorted(index.tolist()))
        return fill(self, dim, index, value)

    monkeypatch.setattr(torch.Tensor, "index_fill_", watched)
    params = replace(PARAMS, max_tokens=5)
    for cls, count in ((SdpaBackend, 0), (Leaking, 3)):
        filled.clear()
        engine = tiny_engine(folder, FixedProvider(cls), block_size=8, enable_prefix_caching=False)
        answers(engine, [FIRST], params)
        # 20 tokens of a prompt and 4 of answer: in each of two groups three blocks at first, one for token 25 never.
        # A block is a row of four planes: K and V of two layers.
        assert [len(rows) for rows in filled] == ([] if count == 0 else [4 * 2 * count])
    answers(engine, [FIRST], replace(PARAMS, max_tokens=7))
    assert [len(rows) for rows in filled[1:]] == [4 * 6, 4 * 2]


def test_a_cached_prefix_is_left_as_it_is(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, FixedProvider(Leaking), block_size=8)
    before = tokens(answers(engine, [FIRST], PARAMS))
    (again,) = answers(engine, [FIRST], PARAMS)
    assert again.num_cached_tokens == 16
    assert tokens([again]) == before


WORK = st.lists(
    st.tuples(st.sampled_from([FIRST, SECOND, [7] * 20, [*FIRST[:17], 3], [1]]), st.integers(1, 20)),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def cores(folder: ModelFolder) -> dict[bool, tuple[EngineCore, EngineCore]]:
    """Right ones and leaking ones, with memory for everybody and with too little."""

    def core(cls: type[Any], blocks: int) -> EngineCore:
        total = sum(group.bytes_per_block for group in tiny_core(folder, block_size=4).kv_config.groups)
        return tiny_core(
            folder,
            FixedProvider(cls),
            block_size=4,
            kv_cache_memory_bytes=blocks * total,
            max_num_batched_tokens=16,
            max_num_seqs=4,
        )

    return {tight: (core(ReferenceBackend, n), core(Leaking, n)) for tight, n in ((False, 60), (True, 14))}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=WORK, tight=st.booleans())
def test_whatever_lies_in_free_blocks_reaches_nobody(
    cores: dict[bool, tuple[EngineCore, EngineCore]], work: list[tuple[list[int], int]], tight: bool
) -> None:
    right, leaking = cores[tight]
    assert serve(leaking, work, poison=True) == serve(right, work, poison=False)


def test_nor_after_preemptions(cores: dict[bool, tuple[EngineCore, EngineCore]]) -> None:
    right, leaking = cores[True]
    work, before = [(FIRST, 20), ([7] * 20, 20), (SECOND, 20), ([1], 20)], leaking.stats().num_preemptions
    assert serve(leaking, work, poison=True) == serve(right, work, poison=False)
    assert leaking.stats().num_preemptions > before


def serve(core: EngineCore, work: list[tuple[list[int], int]], *, poison: bool) -> Fates:
    """The fates of `work`; with `poison`, every free block that is no cached prefix holds NaN after each step."""
    core.reset_prefix_cache()
    fates: Fates = {}
    for number, (prompt, max_tokens) in enumerate(work):
        core.add_request(request(f"r{number}", prompt, max_tokens=max_tokens))
    while core.can_step:
        gather(core.step(), fates)
        if poison:
            poison_free_blocks(core)
    return fates


def poison_free_blocks(core: EngineCore) -> None:
    """Put NaN into all free blocks but cached ones, which may be found yet."""
    pool = core.scheduler.kv.pool
    assert pool.index is not None
    free = [block for block in pool.free_queue if block not in pool.index]
    for cache in core.worker.runner._caches.by_layer.values():
        for plane in cache.planes.values():
            plane[free] = float("nan")
