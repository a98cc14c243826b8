"""The worker's stages one by one: budgets, limits of a backend's addressing, a profiling run, failing rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Capabilities, Device
from headstock.core.errors import CapacityError
from headstock.core.kv import KVCacheConfig
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.core.worker.memory import cpu_budget, device_budget, taking_memory
from support.attention import CPU
from support.engine import FixedProvider
from support.serving import answers
from support.tiny import tiny_engine, tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


class Narrow(SdpaBackend):
    """Addresses few elements."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return replace(super().capabilities(device), max_cache_elements=10_000)


def test_a_cache_beyond_what_a_backend_addresses_is_refused_with_the_limit(folder: ModelFolder) -> None:
    # A block of 16 tokens, 2 heads and 8 channels has 256 elements, so 39 blocks are the most.
    with pytest.raises(CapacityError, match=r"at most 10000 elements.*at most 39"):
        tiny_engine(folder, FixedProvider(Narrow))
    # Two layers a group, K and V, 4 bytes an element.
    answers(tiny_engine(folder, FixedProvider(Narrow), kv_cache_memory_bytes=39 * 2 * 2 * 256 * 4), [[1, 2]])


def test_a_budget_on_a_cpu_stays_within_the_machine_and_the_default() -> None:
    assert 0 < cpu_budget(CPU).nbytes <= 4 * 2**30
    small = replace(CPU, memory_bytes=2**20)
    with pytest.raises(CapacityError, match="no memory is available"):
        cpu_budget(small)


def test_a_card_of_intels_is_asked_by_its_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"mem_get_info": (6 * 2**30, 8 * 2**30), "max_memory_allocated": 2**30, "memory_reserved": 2**30}
    for name, value in figures.items():
        monkeypatch.setattr(torch.xpu, name, lambda device, value=value: value)
    card = Device(platform="xpu", name="a card", arch="xe", memory_bytes=8 * 2**30)
    # Half of 8 GiB, less 1 GiB at the peak and 1 GiB that another process holds.
    assert device_budget(card, 0.5).nbytes == 2 * 2**30


def test_memory_that_is_refused_is_told_with_what_it_was_for(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstock.core.worker.worker.LayerCaches", lambda *_: torch.empty(2**60))
    with pytest.raises(CapacityError, match=r"not enough memory for a KV cache of .* \(max_num_seqs 8, max_num_bat"):
        tiny_engine(folder)
    with pytest.raises(RuntimeError, match="another"), taking_memory("nothing"):
        raise RuntimeError("another")


def test_the_number_of_blocks_follows_from_the_budget_and_is_logged(
    folder: ModelFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        engine = tiny_engine(folder, kv_cache_memory_bytes=50 * 4096 + 5)
    # 2 layers of each group, K and V, 16 tokens, 2 heads, 8 channels, 4 bytes: 4096 bytes a block.
    assert engine.core.kv_config.num_blocks == 50
    assert "KV cache: 50 blocks of 16 tokens for 2 groups of layers" in caplog.text
    assert "given" in caplog.text


def test_no_more_blocks_are_taken_than_requests_can_use(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, kv_cache_memory_bytes=2**30, max_num_seqs=2, max_model_len=64)
    assert engine.core.kv_config.num_blocks == 1 + 2 * (4 + 4)


def test_the_profiling_run_computes_the_largest_step(folder: ModelFolder) -> None:
    largest: list[int] = []

    class Watching(ReferenceBackend):
        def plan(self, batch):
            largest.append(batch.num_tokens)
            return super().plan(batch)

    worker = tiny_engine(folder, FixedProvider(Watching), max_num_batched_tokens=100).core.worker
    worker.profile_run()
    assert set(largest) == {100}


def test_the_caches_start_at_zero_and_groups_take_turns_in_them(folder: ModelFolder) -> None:
    worker = tiny_engine(folder).core.worker
    groups = worker.kv_groups()
    assert [[name.split(".")[2] for name in group.layer_names] for group in groups] == [["0", "1"], ["2", "3"]]
    worker.initialize_kv_cache(KVCacheConfig(num_blocks=5, groups=groups))
    caches = [layer.kv_cache for layer in worker.runner._attention._layers.values()]
    assert len(caches) == 4
    assert caches[0] is caches[2]
    assert caches[1] is caches[3]
    assert caches[0] is not caches[1]
    for cache in caches:
        assert cache is not None
        assert cache.k.shape == (5, 16, 2, 8)
        assert not cache.k.any()


class Poisoned(ReferenceBackend):
    """Gives NaN for the row whose query is last in the batch."""

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        super().forward(layer, query, key=key, value=value, kv_cache=kv_cache, plan=plan, out=out, lse_out=lse_out)
        if plan.num_reqs == 2 and plan.counts.decodes == 2:
            out[-1] = float("nan")


def test_a_row_of_nan_ends_its_request_with_an_error_and_no_other(folder: ModelFolder) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    healthy = answers(tiny_engine(folder), [[5, 9, 13]], params)[0]
    engine = tiny_engine(folder, FixedProvider(Poisoned))
    first, second = answers(engine, [[5, 9, 13], [7, 8]], params)
    assert first.outputs[0].token_ids == healthy.outputs[0].token_ids
    assert second.outputs[0].finish_reason == "error"
    assert "NaN" in (second.outputs[0].error or "")
    assert engine.core.stats().kv_usage == 0


def test_nobody_finds_the_prefix_of_a_request_that_failed(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, FixedProvider(Poisoned), block_size=2)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    failed = answers(engine, [[5, 9, 13], [7, 8, 9, 10, 11]], params)[1]
    assert failed.outputs[0].finish_reason == "error"
    (again,) = answers(engine, [[7, 8, 9, 10, 11]], params)
    assert again.num_cached_tokens == 0
    assert again.outputs[0].finish_reason == "length"


def test_every_layer_has_its_own_cache_and_layers_of_equal_spec_share_a_plan(folder: ModelFolder) -> None:
    attention = tiny_engine(folder).core.worker.runner._attention
    assert [attention._layers[name].group for name in attention._layers] == [0, 0, 1, 1]
    windows = [group.backend.spec.window for group in attention.groups]
    assert windows == [None, (4, 0)]
