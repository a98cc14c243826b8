"""What callers are told while their requests run: everything so far, what is new, or the end."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from headstock.core.engine import LLMEngine, Prompt
from headstock.core.errors import InvalidInput
from headstock.core.model import ModelFolder
from headstock.core.outputs import CompletionOutput, RequestOutput
from headstock.core.params import SamplingParams
from support.serving import answers
from support.tiny import tiny_engine, tiny_folder

PROMPT = Prompt(token_ids=tuple(range(30, 47)))
PARAMS = SamplingParams(temperature=1.2, seed=5, n=3, max_tokens=12, ignore_eos=True, logprobs=1, prompt_logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def run(engine: LLMEngine) -> list[RequestOutput]:
    """All outputs until nothing is left."""
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_deltas_put_together_are_the_whole_answer(folder: ModelFolder) -> None:
    (whole,) = answers(tiny_engine(folder), [PROMPT.token_ids or ()], PARAMS)
    engine = tiny_engine(folder)
    engine.add_request(PROMPT, PARAMS, output_kind="delta")
    deltas = run(engine)
    by_index: defaultdict[int, list[CompletionOutput]] = defaultdict(list)
    for output in deltas:
        for completion in output.outputs:
            by_index[completion.index].append(completion)
    for completion in whole.outputs:
        parts = by_index[completion.index]
        assert len(parts) > 1
        assert "".join(p.text for p in parts) == completion.text
        assert sum((p.token_ids for p in parts), ()) == completion.token_ids
        assert sum((p.logprobs or () for p in parts), ()) == completion.logprobs
        assert [p.finish_reason for p in parts] == [None] * (len(parts) - 1) + [completion.finish_reason]
        assert parts[-1].cumulative_logprob == completion.cumulative_logprob
    assert [output.prompt_logprobs for output in deltas if output.prompt_logprobs] == [whole.prompt_logprobs]
    assert [output.finished for output in deltas] == [False] * (len(deltas) - 1) + [True]


def test_cumulative_outputs_grow_and_end_as_the_final_one(folder: ModelFolder) -> None:
    (whole,) = answers(tiny_engine(folder), [PROMPT.token_ids or ()], PARAMS)
    engine = tiny_engine(folder)
    engine.add_request(PROMPT, PARAMS, output_kind="cumulative")
    outputs = run(engine)
    assert len(outputs) > 1
    for before, after in pairwise(outputs):
        assert all(b.text.startswith(a.text) for a, b in zip(before.outputs, after.outputs, strict=True))
    assert outputs[-1].outputs == whole.outputs
    assert outputs[-1].prompt_logprobs == whole.prompt_logprobs


def test_an_id_that_is_running_is_refused_and_free_again_at_its_end(folder: ModelFolder) -> None:
    engine = tiny_engine(folder)
    first, second = (engine.inputs.prepare(PROMPT, PARAMS, request_id="mine") for _ in range(2))
    assert set(first.engine_ids).isdisjoint(second.engine_ids)
    engine._outputs.add(first, "final")
    with pytest.raises(InvalidInput) as refused:
        engine._outputs.add(second, "final")
    assert refused.value.field == "request_id"
    engine._outputs.drop(first.engine_ids[:2])
    assert engine._outputs.engine_ids(["mine", "nobody's"]) == [first.engine_ids[2]]
    engine._outputs.drop(first.engine_ids[2:])
    engine._outputs.add(second, "final")
