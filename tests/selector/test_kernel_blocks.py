"""A block size that was asked for, and kernels that read smaller blocks."""

from __future__ import annotations

import pytest

from headstock.core.attention import one_of
from headstock.core.errors import BackendError
from headstock.selector import Selector, read_policy
from support.attention import CPU
from support.backends import backend, layers, spec
from support.plugins import world

SIXTEEN = backend("Sixteen", block_sizes=one_of(16, 32))


def propose(block_size, cls=SIXTEEN, **policy):
    policy = policy or {"attention_backend": "k"}
    return Selector(world({"k": cls}), read_policy(environ={}, **policy)).propose(layers(spec()), CPU, block_size)


def test_it_is_divided_by_the_largest_that_the_kernel_reads():
    selection = propose(64)
    (choice,) = selection.choices.values()
    assert (selection.block_size, selection.layout.name) == (64, "nhd")
    assert (choice.backend, choice.cls.kernel_block, choice.cls.whole_cls) == ("k", 32, SIXTEEN)
    assert "k reads blocks of 64 as 2 of 32 each" in selection.notes


@pytest.mark.parametrize("block_size", [None, 16, 32])
def test_what_the_kernel_reads_is_left_as_it_is(block_size):
    (choice,) = propose(block_size).choices.values()
    assert choice.cls is SIXTEEN


def test_a_size_that_none_divides_is_refused():
    with pytest.raises(BackendError, match="block_size: asked 24, offered 16, 32"):
        propose(24)


def test_only_blocks_of_tokens_one_after_the_other_are_divided():
    with pytest.raises(BackendError, match="block_size: asked 64, offered 16"):
        propose(64, backend("H", block_sizes=one_of(16), layouts=("hnd",)))


def test_each_part_of_a_pair_divides_for_itself():
    parts = {"decode_attention_backend": "k", "prefill_attention_backend": "sdpa"}
    selection = propose(32, backend("Of8", block_sizes=one_of(8)), **parts)
    (choice,) = selection.choices.values()
    assert choice.backend == "decode=k,prefill=sdpa"
    assert choice.cls.decode_cls.kernel_block == 8
    assert selection.block_size == 32


def test_layers_share_a_class():
    chosen = Selector(world({"k": SIXTEEN}), read_policy(environ={}, attention_backend="k"))
    both = chosen.propose(layers(spec(), spec(window=(3, 0))), CPU, 64).choices.values()
    assert len({choice.cls for choice in both}) == 1
