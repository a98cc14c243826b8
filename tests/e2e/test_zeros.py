"""Every layer's attention, in both phases, is the backend's: one that writes zeros changes what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from headstock.backends.sdpa import SdpaBackend
from headstock.core.engine import EngineConfig, EngineCore, InprocClient, InputProcessor, LLMEngine
from headstock.core.model import read_config, resolve_model
from headstock.core.params import SamplingParams
from headstock.core.text import Tokenizer
from support.attention import CPU
from support.engine import FixedProvider
from support.serving import answers

PROMPT = [504, 3575, 282, 4649, 314]
PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=1)
LAYERS = 30


class Muted(SdpaBackend):
    """Writes zeros in one layer and phase."""

    target: ClassVar[tuple[str, bool] | None] = None
    """Layer name, and whether in decode steps."""
    calls: ClassVar[int] = 0

    def plan(self, batch: Any) -> Any:
        self.decoding = batch.counts.decodes > 0
        return super().plan(batch)

    def forward(self, layer: Any, query: Any, *, out: Any, **rest: Any) -> None:
        if Muted.target == (layer.name, self.decoding):
            Muted.calls += 1
            out.zero_()
        else:
            super().forward(layer, query, out=out, **rest)


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    folder = resolve_model("smollm2")
    config = read_config(folder.path)
    settings = EngineConfig(device=CPU, dtype="float32", enable_prefix_caching=False, kv_cache_memory_bytes=2**24)
    core = EngineCore(settings, folder, config, FixedProvider(Muted))
    tokenizer = Tokenizer.from_folder(folder.path)
    inputs = InputProcessor(tokenizer, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids)
    yield LLMEngine(InprocClient(core), inputs)
    Muted.target = None


def logprobs(engine: LLMEngine) -> tuple[float, float]:
    """Of the likeliest first and second token."""
    (output,) = answers(engine, [PROMPT], PARAMS)
    entries = output.outputs[0].logprobs
    assert entries is not None
    first, second = (next(iter(entry.values())).logprob for entry in entries)
    return first, second


@pytest.mark.parametrize("decoding", [False, True], ids=["prefill", "decode"])
def test_zeros_from_a_backend_change_the_output(engine: LLMEngine, decoding: bool) -> None:
    Muted.target = None
    whole = logprobs(engine)
    assert logprobs(engine) == whole
    for index in range(LAYERS):
        Muted.target, Muted.calls = (f"model.layers.{index}.self_attn.attn", decoding), 0
        muted = logprobs(engine)
        assert Muted.calls == 1
        assert abs(muted[decoding] - whole[decoding]) > 1e-4, f"layer {index} does not matter"
        if decoding:
            assert muted[0] == whole[0]
