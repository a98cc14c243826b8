"""Blocks of a cache that are larger than the kernel's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import Sizes, kernel_block, one_of, subdivided
from support.attention import CPU, Scene, make, uniform_spec
from support.conforming import failed, outcomes, passed


class OfFour(SdpaBackend):
    """Reads blocks of 4 and says so when it is given others."""

    @classmethod
    def capabilities(cls, device):
        return replace(super().capabilities(device), block_sizes=one_of(4))

    def __init__(self, spec, *others):
        assert spec.block_size == 4
        super().__init__(spec, *others)

    def forward(self, layer, query, *, kv_cache, **others):
        assert kv_cache is None or kv_cache.block_size == layer.spec.block_size == 4
        super().forward(layer, query, kv_cache=kv_cache, **others)


@pytest.mark.parametrize(
    ("size", "sizes", "block"),
    [
        (64, one_of(16, 32), 32),
        (48, one_of(16, 32), 16),
        (16, one_of(16, 32), 16),
        (8, one_of(16), None),
        (512, Sizes(low=256, multiple_of=256), 512),
        (24, Sizes(multiple_of=3), 24),
    ],
)
def test_the_largest_that_divides_is_the_kernels(size, sizes, block):
    assert kernel_block(size, sizes) == block


def test_it_conforms():
    cls = subdivided(OfFour, 4)
    assert 16 in cls.capabilities(CPU).block_sizes
    found = outcomes(cls, CPU, only={"writing", "keys", "unowned", "plans", "window", "offsets", "layers", "sizes"})
    assert failed(found) == []
    assert passed(found) >= {"writing", "keys", "unowned", "plans", "window", "layers", "sizes"}


@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_bits_are_those_of_the_kernel_alone(block_size):
    spec = uniform_spec(num_heads=4, num_kv_heads=2, block_size=block_size)
    queries = [torch.randn(n, 4, 64, generator=torch.Generator().manual_seed(n)) for n in (1, 3)]
    scene = Scene(spec=spec, seq_lens=[70, 33])
    right = Scene(spec=spec, seq_lens=[70, 33]).attend(make(ReferenceBackend, spec), queries)
    torch.testing.assert_close(scene.attend(make(subdivided(OfFour, 4), spec), queries), right)


def test_heads_before_tokens_cannot_be_divided():
    assert subdivided(OfFour, 4).capabilities(CPU).layouts == ("nhd",)
