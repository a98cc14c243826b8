"""Decode steps from recordings: the same tokens, buffers that stay, and no recording where there can be none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Capabilities, Device, GraphSupport, Workspace, by_phase
from headstock.core.engine import LLMEngine
from headstock.core.live import Tape, read_recording, taping
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.core.worker.graphs import CudaRecorder, graph_sizes, recorder_for
from support.attention import CPU
from support.engine import FixedProvider
from support.graphs import Capturable, Gathering, Recorder
from support.interpreted import interpreted
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], [5, 9, 13, 200, 201]]
PARAMS = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (12, 3, 8, 10, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def eager(folder: ModelFolder) -> list[tuple[int, ...]]:
    return tokens(answers(tiny_engine(folder, FixedProvider(ReferenceBackend)), PROMPTS, PARAMS))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr("headstock.core.worker.worker.recorder_for", lambda device: made)
    return made


def test_sizes_are_dense_where_padding_costs_most_and_end_at_the_most_rows() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(3) == (1, 2, 3)
    assert graph_sizes(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert graph_sizes(100)[-2:] == (96, 100)
    assert graph_sizes(300)[-4:] == (256, 272, 288, 300)
    assert graph_sizes(10_000)[-1] == 512
    for size in (1, 5, 64, 257, 512):
        assert list(graph_sizes(size)) == sorted(set(graph_sizes(size)))


@pytest.mark.parametrize("tensors", [False, True])
def test_a_recording_has_every_step_and_graphs_are_left_out_only_for_vectors(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder, tmp_path: Path, tensors: bool
) -> None:
    engine = tiny_engine(folder, FixedProvider(Capturable))
    with taping(Tape(tmp_path / "tape", tensors=tensors)):
        assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    assert (recorder.num_replays == 0) == tensors
    for step in read_recording(tmp_path / "tape").steps:
        assert len(step.tensors) == (len(step.groups) if tensors else 0)
        for found in step.tensors:
            assert torch.isfinite(found.query).all()


def test_there_are_no_graphs_on_cpus() -> None:
    assert recorder_for(CPU) is None


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("backend", [Capturable, Gathering])
def test_replayed_steps_give_the_same_tokens(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder, block_size: int, backend: Any
) -> None:
    # Layers of two KV groups: each has a table and slots of its own in the recording.
    engine = tiny_engine(folder, FixedProvider(backend), block_size=block_size)
    assert list(recorder.recordings) == [8, 4, 2, 1]
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    assert all(recording.count for recording in recorder.recordings.values())
    steps = engine.core.stats().num_steps
    assert recorder.num_replays >= steps - 2


@pytest.mark.heavy
@interpreted
def test_our_own_kernels_replay_as_well(folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder) -> None:
    from headstock.backends.triton import TritonBackend

    engine = tiny_engine(folder, FixedProvider(TritonBackend), block_size=4, max_num_seqs=2)
    params = [replace(PARAMS[0], max_tokens=n) for n in (3, 2)]
    assert tokens(answers(engine, [PROMPTS[0], PROMPTS[3]], params)) == [eager[0][:3], eager[3][:2]]
    assert [recorder.recordings[size].count for size in (1, 2)] == [1, 1]


def test_chunks_beside_decodes_run_eagerly_and_change_nothing(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder
) -> None:
    engine = tiny_engine(folder, FixedProvider(Capturable), block_size=4, max_num_batched_tokens=7, max_num_seqs=3)
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    stats = engine.core.stats()
    assert 0 < recorder.num_replays < stats.num_steps
    assert stats.num_mixed_steps > 0


def test_a_pair_of_backends_by_phase_is_captured_where_both_can_be(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder
) -> None:
    engine = tiny_engine(folder, FixedProvider(lambda name: by_phase(Capturable, Capturable)))
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    assert recorder.num_replays > 0


def test_recordings_outlive_a_step_that_raised(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder
) -> None:
    engine: LLMEngine = tiny_engine(folder, FixedProvider(Capturable))
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    before = recorder.num_replays
    engine.core.worker.forget_requests()
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    assert recorder.num_replays > before


def test_an_engine_that_slept_records_anew(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder
) -> None:
    engine = tiny_engine(folder, FixedProvider(Capturable))
    first = dict(recorder.recordings)
    engine.core.sleep()
    engine.core.wake_up()
    assert all(recorder.recordings[size] is not recording for size, recording in first.items())
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager


def test_one_backend_that_cannot_be_captured_means_none_is_and_the_log_names_it(
    folder: ModelFolder, eager: list[tuple[int, ...]], recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        engine = tiny_engine(folder, FixedProvider(lambda name: SdpaBackend if ".1." in name else Capturable))
    assert recorder.recordings == {}
    assert "no device graphs: backend SdpaBackend cannot be captured" in caplog.text
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager


def test_enforce_eager_records_nothing(folder: ModelFolder, recorder: Recorder) -> None:
    engine = tiny_engine(folder, FixedProvider(Capturable), enforce_eager=True)
    answers(engine, PROMPTS[:1], PARAMS[:1])
    assert recorder.recordings == {}


def test_backends_are_told_the_sizes_and_the_length_of_padded_rows(folder: ModelFolder, recorder: Recorder) -> None:
    seen: dict[int, set[tuple[int, ...]]] = {}

    class Watching(Capturable):
        @classmethod
        def capabilities(cls, device: Device) -> Capabilities:
            return replace(super().capabilities(device), graph=GraphSupport.UNIFORM, padded_seq_len=1)

        def plan(self, batch):
            if batch.graph is not None and not batch.graph.capturing:
                assert batch.graph.padded_reqs in self.limits.capture_sizes == (1, 2, 4, 8)
                seen.setdefault(batch.graph.padded_reqs, set()).add(tuple(batch.seq_lens[batch.num_reqs :].tolist()))
            return super().plan(batch)

    answers(tiny_engine(folder, FixedProvider(Watching)), PROMPTS, PARAMS)
    assert (1, 1, 1) in seen[8]
    assert all(length == 1 for lengths in seen.values() for padding in lengths for length in padding)


def test_capturing_leaves_the_cache_as_it_was(tmp_path: Path, folder: ModelFolder, recorder: Recorder) -> None:
    engine = tiny_engine(folder, FixedProvider(Capturable))
    for layer in engine.core.worker.runner._attention._layers.values():
        assert layer.kv_cache is not None
        assert not layer.kv_cache.k.any()
        assert not layer.kv_cache.v.any()


def test_memory_that_a_graph_works_in_is_kept_when_it_is_outgrown() -> None:
    workspace = Workspace("cpu")
    small = workspace.get(100)
    workspace.keep()
    workspace.keep()
    large = workspace.get(1000)
    assert small.data_ptr() != large.data_ptr()
    assert [kept.data_ptr() for kept in workspace._kept] == [small.data_ptr()]
    assert workspace.nbytes == 1100
    assert torch.equal(workspace.get(10), large[:10])


def test_a_card_is_warmed_up_on_another_stream_and_then_captured_into_the_common_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[object] = []

    @contextmanager
    def within(*what: object, **options: object) -> Iterator[None]:
        events.append((*what, *options.values()))
        yield
        events.append("end")

    class Stream:
        def wait_stream(self, other: object) -> None:
            events.append("wait")

    class Graph:
        def replay(self) -> None:
            events.append("replay")

    graph, stream = Graph(), Stream()
    for name, stand_in in {
        "device": within,
        "stream": within,
        "graph": within,
        "Stream": lambda: stream,
        "current_stream": Stream,
        "CUDAGraph": lambda: graph,
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def work() -> torch.Tensor:
        events.append("work")
        return torch.ones(2)

    recording = CudaRecorder("cuda:1").record(work, [])
    capture = [(graph, "pool"), "work", "end"]
    assert events == [("cuda:1",), "wait", (stream,), "work", "end", "wait", *capture, "end"]
    assert recording.replay([]) is recording.replay([])
    assert events[-2:] == ["replay", "replay"]
