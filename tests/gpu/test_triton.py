"""The triton backend on a card: sizes that the kit's small batches do not reach, and a model. Never run so far."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headstock import LLM, SamplingParams
from headstock.backends.triton import TritonBackend
from headstock.core.attention import AttentionSpec, Device
from headstock.plugins.conformance import Problem, Subject
from headstock.plugins.conformance.rig import Rig
from headstock.selector import probe
from support.tiny import tiny_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]


@pytest.fixture(scope="module")
def card() -> Device:
    return next(device for device in probe() if device.platform in ("cuda", "rocm"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize(
    ("rows", "features"),
    [
        (((1, 6000),), {}),
        (((1, 3000), (1, 17), (1, 900)), {"sinks": True, "window": (511, 0)}),
        (((300, 300), (130, 700)), {"softcap": 30.0}),
        (((1, 2000), (5, 1500), (200, 200)), {"alibi": True}),
    ],
    ids=["one long decode", "decodes with sinks and a window", "prompts with a softcap", "mixed with ALiBi"],
)
def test_it_agrees_with_the_reference(
    card: Device, dtype: str, head_size: int, rows: tuple[tuple[int, int], ...], features: dict[str, Any]
) -> None:
    spec = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=head_size, dtype=dtype, lse=True, **features)
    subject = Subject(name="triton", cls=TritonBackend, device=card)
    problem = Problem(spec=spec, rows=rows, layout="hnd")
    if reasons := subject.reasons(problem):
        pytest.skip("; ".join(reasons))
    Rig(subject, problem).require_right(problem)


def test_a_model_answers_as_through_the_reference(tmp_path) -> None:
    tiny_folder(tmp_path)
    prompts = [list(range(1, n)) for n in (120, 4, 33)]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)

    def answers(backend: str) -> list[list[int]]:
        llm = LLM(str(tmp_path), attention_backend=backend, max_num_batched_tokens=64)
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]

    assert answers("triton") == answers("reference")
