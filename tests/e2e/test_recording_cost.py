"""What recording costs, by attribution: the share of a step that its span has, on a real model."""

from __future__ import annotations

from statistics import median

import pytest

from headstock import LLM, SamplingParams
from headstock.core.live import Tape, taping
from headstock.core.trace import Recorder, recording

MOST = 0.02
"""Of a step's time."""


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", dtype="float32")


@pytest.mark.parametrize(
    ("requests", "tokens", "steps"),
    [
        (1, 64, 12),
        pytest.param(16, 256, 16, marks=[pytest.mark.heavy, pytest.mark.timeout(600)]),
    ],
)
def test_metadata_take_less_than_a_fiftieth_of_a_step(llm, tmp_path, requests, tokens, steps):
    """Medians, which a busy machine moves alike. One request is the worst case: its steps are the shortest."""
    prompts = [[1000 + r + t % 7000 for t in range(tokens)] for r in range(requests)]
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    with taping(Tape(tmp_path / "attention.tape")), recording(Recorder()) as recorder:
        llm.generate(prompts, params, use_tqdm=False)
    taken = {n: [s.duration for s in recorder.spans if s.name == n] for n in ("step", "record")}
    assert len(taken["record"]) >= steps
    share = median(taken["record"]) / median(taken["step"])
    size = (tmp_path / "attention.tape").stat().st_size / len(taken["record"])
    print(
        f"{requests} requests: {median(taken['record']) / 1e3:.0f} us, {share:.2%} of a step, {size:.0f} bytes a step"
    )
    assert share < MOST
