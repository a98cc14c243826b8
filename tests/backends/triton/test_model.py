"""Models through the triton backend, in Triton's interpreter: the tokens that another backend gives."""

from __future__ import annotations

import pytest

from headstock import LLM, SamplingParams
from support.interpreted import interpreted
from support.parity import RECORDS, assert_parity, parity_params, prompts_of
from support.tiny import tiny_folder

pytestmark = interpreted


def test_a_small_model_answers_as_through_sdpa(tmp_path) -> None:
    """Two layers, one of them with a window of 5; prompts in chunks of 8, decodes beside them, over shared prefixes."""
    tiny_folder(tmp_path, num_hidden_layers=2, max_window_layers=1)
    prompts = [list(range(1, n)) for n in (12, 4, 12)]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)

    def answers(backend: str) -> list[list[int]]:
        llm = LLM(str(tmp_path), attention_backend=backend, max_num_batched_tokens=8, max_num_seqs=4)
        assert llm.attention.summary()[0].startswith(f"attention backend: {backend} ")
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]

    assert answers("triton") == answers("sdpa")


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_smollm2_answers_a_prompt_as_transformers_does() -> None:
    """A prompt of up to 16 tokens, and 4 tokens."""
    record = min(RECORDS, key=lambda record: abs(len(record["prompt_token_ids"]) - 16))
    llm = LLM("smollm2", dtype="float32", attention_backend="triton")
    assert "triton" in llm.attention.summary()[0]
    assert_parity(llm.generate(prompts_of([record]), parity_params(4), use_tqdm=False), [record], 4)
