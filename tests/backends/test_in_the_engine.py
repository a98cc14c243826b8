"""Kernel libraries under the whole engine, through their doubles: paged, in several KV groups, from recorded graphs.

Tokens are those of `sdpa` in the same dtype: the model's logits lie far enough apart.
"""

from __future__ import annotations

import pytest

from headstock.backends.flash_attn import FlashAttention2, FlashAttention3, FlashAttention4
from headstock.backends.flashinfer import FlashInfer
from headstock.backends.flex_attention import FlexAttention
from headstock.backends.rocm import AiterFlashAttention, AiterUnified, RocmAttention, ShuffledFlashAttention
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import by_phase, subdivided
from headstock.core.params import SamplingParams
from support.doubles import aiter, dao
from support.doubles.devices import pretend
from support.doubles.flashinfer import flashinfer
from support.doubles.install import distribution, install
from support.engine import FixedProvider
from support.graphs import Capturable, Recorder
from support.interpreted import interpreted
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], [5, 9, 13, 200, 201]]
PARAMS = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (12, 3, 8, 10, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("tiny"), head_dim=64, torch_dtype="float16")


@pytest.fixture(scope="module")
def right(folder):
    return tokens(answers(tiny_engine(folder, FixedProvider(SdpaBackend), dtype="float16"), PROMPTS, PARAMS))


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr("headstock.core.worker.worker.recorder_for", lambda device: made)
    return made


@pytest.fixture(autouse=True)
def _doubles(monkeypatch, tmp_path):
    distribution(monkeypatch, tmp_path, "amd-aiter", "0.1.20.post1")
    install(monkeypatch, dao.flash_attn_2() | dao.flash_attn_3() | dao.flash_attn_4() | flashinfer() | aiter.aiter())


def as_if_there(cls, card="h100"):
    """`cls`, which is told that it is on this card."""

    class There(cls):
        @classmethod
        def capabilities(cls, device):
            return super().capabilities(pretend(card))

        def __init__(self, spec, device, *others):
            super().__init__(spec, pretend(card), *others)

    There.__name__ = cls.__name__
    return There


@pytest.mark.parametrize(
    ("cls", "block_size", "card", "layout"),
    [
        (FlashAttention2, 256, "h100", "nhd"),
        (FlashAttention3, 16, "h100", "nhd"),
        (FlashAttention4, 16, "h100", "nhd"),
        (FlashInfer, 16, "h100", "nhd"),
        (AiterFlashAttention, 16, "mi300x", "nhd"),
        (AiterUnified, 16, "mi300x", "nhd"),
        (RocmAttention.derive("RocmOverReference", kernels=Capturable), 16, "mi300x", "x_packed"),
        pytest.param(RocmAttention, 16, "mi300x", "x_packed", marks=[interpreted, pytest.mark.heavy]),
        (FlexAttention, 16, "cpu-avx2", "nhd"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_tokens_are_those_of_sdpa(folder, right, recorder, cls, block_size, card, layout):
    engine = tiny_engine(
        folder,
        FixedProvider(as_if_there(cls, card), layout),
        dtype="float16",
        block_size=block_size,
        kv_cache_memory_bytes=2**24,
    )
    assert tokens(answers(engine, PROMPTS, PARAMS)) == right
    assert (recorder.num_replays > 0) is (cls is not FlexAttention)


def test_tokens_over_shuffled_planes_are_those_of_sdpa(tmp_path, recorder):
    folder = tiny_folder(tmp_path, head_dim=128, torch_dtype="float16", use_sliding_window=False)
    right = tokens(answers(tiny_engine(folder, FixedProvider(SdpaBackend), dtype="float16"), PROMPTS, PARAMS))
    provider = FixedProvider(as_if_there(ShuffledFlashAttention, "mi300x"), "shuffle")
    engine = tiny_engine(folder, provider, dtype="float16", kv_cache_memory_bytes=2**24)
    assert tokens(answers(engine, PROMPTS, PARAMS)) == right
    assert recorder.num_replays > 0


def test_a_pair_and_divided_blocks(folder, right, recorder):
    for cls, block_size in (
        (by_phase(as_if_there(FlashInfer), as_if_there(FlashAttention3)), 16),
        (subdivided(as_if_there(FlashInfer), 16), 64),
    ):
        engine = tiny_engine(folder, FixedProvider(cls), dtype="float16", block_size=block_size)
        assert tokens(answers(engine, PROMPTS, PARAMS)) == right
