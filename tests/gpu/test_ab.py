"""Times of calls on a card, and kernels held against each other there. Never run so far."""

from __future__ import annotations

import pytest
import torch

from headstock.benchmarks.clock import seconds_of
from headstock.core.attention import Device
from headstock.selector import probe
from support.cli import run_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]


@pytest.fixture(scope="module")
def card() -> Device:
    return next(device for device in probe() if device.platform in ("cuda", "rocm"))


def test_a_call_takes_no_less_than_the_memory_it_writes(card: Device) -> None:
    buffer = torch.empty(2**28, dtype=torch.int8, device=card.torch_device)
    seconds = min(seconds_of(buffer.zero_, card.torch_device) for _ in range(5))
    assert seconds > buffer.nbytes / (1.1 * (card.bandwidth or 10e12))
    assert seconds < 0.1


def test_a_kernel_twice_as_long_is_found_so(card: Device) -> None:
    a = torch.randn(2048, 2048, device=card.torch_device)

    def times(count: int) -> float:
        return min(seconds_of(lambda: [torch.mm(a, a) for _ in range(count)], card.torch_device) for _ in range(5))

    times(4)
    assert times(8) / times(4) == pytest.approx(2.0, rel=0.2)


def test_two_alike_are_compared_there(card: Device) -> None:
    where = f"{card.platform}:{card.index}"
    done = run_cli(
        "ab", "sdpa", "sdpa{}", "--shapes", "decode:32/8/128:4x1k", "--device", where, "--no-check", "--json"
    )
    assert done.code == 0, done.err
    assert done.json["machine"]["gpu"] == card.name
    assert 0.8 < done.json["ratio"]["estimate"] < 1.25
