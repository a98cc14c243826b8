"""Device graphs as a card captures them. CPUs replay the same steps in tests/core/worker/test_graphs.py."""

from __future__ import annotations

import pytest
import torch

from headstock.core.attention import Device
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.core.worker.graphs import CudaRecorder, StepGraphs
from headstock.selector import probe
from support.engine import FixedProvider
from support.graphs import Gathering
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]
PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], [5, 9, 13, 200, 201]]
PARAMS = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (12, 3, 8, 10, 6)]


@pytest.fixture(scope="module")
def card() -> Device:
    return next(device for device in probe() if device.platform in ("cuda", "rocm"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the steps that were replayed."""
    seen: list[int] = []
    replay = StepGraphs.replay

    def counted(self: StepGraphs, inputs: object) -> torch.Tensor:
        seen.append(len(inputs.positions))  # pyright: ignore
        return replay(self, inputs)  # pyright: ignore

    monkeypatch.setattr(StepGraphs, "replay", counted)
    return seen


def test_a_recording_computes_from_what_its_buffers_hold(card: Device) -> None:
    x = torch.arange(4.0, device=card.torch_device)
    recording = CudaRecorder(card.torch_device).record(lambda: x * 2 + 1, [x])
    x.fill_(5)
    assert recording.replay([x]).tolist() == [11.0] * 4
    x.fill_(-1)
    assert recording.replay([x]).tolist() == [-1.0] * 4


def test_recordings_of_one_recorder_share_memory_and_do_not_mix(card: Device) -> None:
    recorder = CudaRecorder(card.torch_device)
    inputs = [torch.ones(size, device=card.torch_device) for size in (64, 8, 1)]
    recordings = [recorder.record(lambda x=x: (x + 1).cumsum(0), [x]) for x in inputs]
    for value in (1.0, 3.0):
        for x, recording in zip(inputs, recordings, strict=True):
            x.fill_(value)
            assert recording.replay([x])[-1].item() == len(x) * (value + 1)


@pytest.mark.parametrize("block_size", [4, 16])
def test_captured_steps_give_the_same_tokens(
    folder: ModelFolder, card: Device, replays: list[int], block_size: int
) -> None:
    provider = FixedProvider(Gathering)
    common = {"device": card, "dtype": "float32", "block_size": block_size}
    eager = tokens(answers(tiny_engine(folder, provider, enforce_eager=True, **common), PROMPTS, PARAMS))
    assert replays == []
    engine = tiny_engine(folder, provider, **common)
    for _ in range(2):
        assert tokens(answers(engine, PROMPTS, PARAMS)) == eager
    assert set(replays) == {1, 2, 4, 8}
    engine.core.worker.forget_requests()
    assert tokens(answers(engine, PROMPTS, PARAMS)) == eager


def test_an_engine_that_slept_captures_anew(folder: ModelFolder, card: Device, replays: list[int]) -> None:
    engine = tiny_engine(folder, FixedProvider(Gathering), device=card, dtype="float32")
    before = tokens(answers(engine, PROMPTS, PARAMS))
    engine.core.sleep()
    engine.core.wake_up()
    assert tokens(answers(engine, PROMPTS, PARAMS)) == before
    assert replays
