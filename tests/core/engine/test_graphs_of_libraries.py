"""Kernel libraries in replayed steps, by their doubles: what the engine pads, their plans take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstock.backends.flash_attn import FlashAttention2, FlashAttention3, FlashAttention4
from headstock.backends.flashinfer import FlashInfer
from headstock.core.params import SamplingParams
from support.doubles import dao
from support.doubles.devices import pretend
from support.doubles.flashinfer import flashinfer
from support.doubles.install import install
from support.engine import FixedProvider
from support.graphs import Recorder
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63))]
PARAMS = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (8, 3, 6)]
LIBRARIES: dict[str, tuple[Any, Any, int]] = {
    "flash_attn 2": (FlashAttention2, dao.flash_attn_2, 256),
    "flash_attn 3": (FlashAttention3, dao.flash_attn_3, 16),
    "flash_attn 4": (FlashAttention4, dao.flash_attn_4, 128),
    "flashinfer": (FlashInfer, flashinfer, 16),
}
"""Name → the backend, its library's double, a block size."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_replayed_steps_give_the_tokens_of_eager_ones(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, double, block_size = LIBRARIES[library]
    install(monkeypatch, double())
    recorder = Recorder()
    monkeypatch.setattr("headstock.core.worker.worker.recorder_for", lambda device: recorder)
    folder = tiny_folder(tmp_path, num_attention_heads=2, num_key_value_heads=1, hidden_size=128, head_dim=64)
    common = {"device": pretend("h100"), "dtype": "bfloat16", "block_size": block_size, "kv_cache_memory_bytes": 2**24}
    found = []
    for enforce_eager in (True, False):
        engine = tiny_engine(folder, FixedProvider(backend), enforce_eager=enforce_eager, **common)
        found.append([tokens(answers(engine, PROMPTS, PARAMS)) for _ in range(2)])
    assert found[0] == found[1]
    assert {size for size, recording in recorder.recordings.items() if recording.count} == {1, 2, 4}
