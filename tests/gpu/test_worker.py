"""The worker's buffers on a card: blocks that change hands, and inputs that it reads long after they were filled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Capabilities, Device
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.selector import probe
from support.engine import FixedProvider
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]
PROMPT = [(7 * n) % 250 for n in range(200)]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def card() -> Device:
    return next(device for device in probe() if device.platform in ("cuda", "rocm"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


class Needing(SdpaBackend):
    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        return replace(super().capabilities(device), needs_zeroed_cache=True)


class Slow(SdpaBackend):
    """Keeps the card busy, so that the host is steps ahead of it."""

    def prepare(self, plan):
        torch.cuda._sleep(20_000_000)
        super().prepare(plan)


def test_blocks_that_a_request_takes_over_are_zeroed(card: Device, folder: ModelFolder) -> None:
    engine = tiny_engine(folder, FixedProvider(Needing), device=card, enable_prefix_caching=False)
    first = tokens(answers(engine, [PROMPT], PARAMS))
    planes = [p for cache in engine.core.worker.runner._caches.by_layer.values() for p in cache.planes.values()]
    for plane in planes:
        plane.fill_(float("nan"))
    assert tokens(answers(engine, [PROMPT], PARAMS)) == first
    for plane in planes:
        poisoned = plane.isnan().flatten(1)
        assert torch.equal(poisoned.any(1), poisoned.all(1)), "a block is zeroed whole, or is nobody's"
        assert not poisoned.all()


def test_a_host_that_is_ahead_overwrites_nothing_that_the_card_has_yet_to_read(
    card: Device, folder: ModelFolder
) -> None:
    right = tokens(answers(tiny_engine(folder, FixedProvider(SdpaBackend), device=card), [PROMPT], PARAMS))
    engine = tiny_engine(folder, FixedProvider(Slow), device=card, max_num_batched_tokens=16)
    assert tokens(answers(engine, [PROMPT], PARAMS)) == right
