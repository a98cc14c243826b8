"""Running an `LLMEngine` to the end, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstock.core.engine import LLMEngine, Prompt
from headstock.core.outputs import RequestOutput
from headstock.core.params import SamplingParams


def answers(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], params: Any = None, **options: Any
) -> list[RequestOutput]:
    """The outputs of token-id prompts, in order; `params` is one for all or one for each."""
    params = params or SamplingParams(temperature=0, max_tokens=12)
    each = params if isinstance(params, Sequence) else [params] * len(prompts)
    ids = [
        engine.add_request(Prompt(token_ids=tuple(prompt)), own, **options)
        for prompt, own in zip(prompts, each, strict=True)
    ]
    done = finish(engine)
    return [done[i] for i in ids]


def finish(engine: LLMEngine) -> dict[str, RequestOutput]:
    """Step until nothing is left; last output by request id."""
    done: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        done.update((output.request_id, output) for output in engine.step())
    return done


def tokens(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    """Token ids of the first completions."""
    return [output.outputs[0].token_ids for output in outputs]
