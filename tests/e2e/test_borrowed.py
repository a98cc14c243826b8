"""A real model through transformers' modelling code gives the answers that were recorded from transformers."""

from __future__ import annotations

import pytest

from headstock import LLM
from support.parity import RECORDS, assert_parity, parity_params, prompts_of


@pytest.mark.heavy
def test_smollm2_answers_as_recorded() -> None:
    llm = LLM("smollm2", model_impl="transformers", dtype="float32")
    records = RECORDS[:8]
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts_of(records)]
    assert_parity(llm.generate(prompts, parity_params(), use_tqdm=False), records)
    assert llm.model.implementation.startswith("transformers 5")
